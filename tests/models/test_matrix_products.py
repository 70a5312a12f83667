import time

import pytest
import torch

from unrolled.models.matrix_products import current_matrix_mode, matrix_mode, probe_matrix_mode

HAS_MODES = hasattr(torch.backends.mkldnn, "matmul") and torch.backends.mkldnn.is_available()
pytestmark = pytest.mark.skipif(not HAS_MODES, reason="this PyTorch has no choice of matrix products")


@pytest.fixture
def timed(monkeypatch):
    """Makes a product take so many seconds in each mode, on a clock of its own."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def make(product, default, onednn):
        def measured(a, b):
            now[0] += default if current_matrix_mode() == "default" else onednn
            return product(a, b)

        return measured

    return make


def rounding(a, b):
    """What hardware with bfloat16 instructions does under the faster mode."""
    if current_matrix_mode() == "onednn":
        return (a.bfloat16() @ b.bfloat16()).float()
    return a @ b


def slightly_off(a, b):
    return a @ b * (1 + 2e-6)


@pytest.mark.parametrize(
    ("onednn", "expected"), [(0.5, "onednn"), (0.75, "onednn"), (0.8, "default"), (2.0, "default")]
)
def test_faster_and_exact_is_taken(timed, onednn, expected):
    assert probe_matrix_mode(timed(torch.matmul, 1.0, onednn)) == expected


@pytest.mark.parametrize("product", [rounding, slightly_off])
def test_rounding_is_refused_however_fast(timed, product):
    assert probe_matrix_mode(timed(product, 1.0, 0.1)) == "default"


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
