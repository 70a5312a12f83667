import time

import pytest
import torch

from unrolled.training import current_matrix_mode, matrix_mode, probe_matrix_mode

HAS_MODES = hasattr(torch.backends.mkldnn, "matmul") and torch.backends.mkldnn.is_available()
pytestmark = pytest.mark.skipif(not HAS_MODES, reason="this PyTorch has no choice of matrix products")


def delayed(product, seconds):
    """A product that takes longer in the default mode."""

    def measured(a, b):
        if current_matrix_mode() == "default":
            time.sleep(seconds)
        return product(a, b)

    return measured


def rounding(a, b):
    """What hardware with bfloat16 instructions does under the faster mode."""
    if current_matrix_mode() == "onednn":
        return (a.bfloat16() @ b.bfloat16()).float()
    return a @ b


def slightly_off(a, b):
    return a @ b * (1 + 2e-6)


def test_faster_and_exact_is_taken():
    assert probe_matrix_mode(delayed(torch.matmul, 0.02)) == "onednn"


@pytest.mark.parametrize("product", [rounding, slightly_off])
def test_rounding_is_refused_however_fast(product):
    assert probe_matrix_mode(delayed(product, 0.02)) == "default"


def test_no_gain_is_refused():
    def same(a, b):
        time.sleep(0.01)
        return a.double() @ b.double()  # as fast in either mode

    assert probe_matrix_mode(same) == "default"


def test_the_probe_is_quick_and_leaves_the_setting():
    before, start = torch.backends.mkldnn.matmul.fp32_precision, time.perf_counter()
    probe_matrix_mode()
    assert time.perf_counter() - start < 2
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_the_setting_is_restored_also_after_an_error():
    before = torch.backends.mkldnn.matmul.fp32_precision
    with pytest.raises(RuntimeError, match="inside"), matrix_mode("onednn"):
        assert current_matrix_mode() == "onednn"
        with matrix_mode("default"):
            assert current_matrix_mode() == "default"
        assert current_matrix_mode() == "onednn"
        raise RuntimeError("inside")
    assert torch.backends.mkldnn.matmul.fp32_precision == before
