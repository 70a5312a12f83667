import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unrolled.training import cross_entropy_sum

LOGITS = torch.tensor([[[2.0, 1, 0, -1], [0, 0, 0, 5]]])


def relabelled(labels):
    """The case has class 0 as a real label; here 0 is padding, so classes 0 and 3 change places."""
    return LOGITS[..., [3, 1, 2, 0]], torch.tensor([labels])


@pytest.mark.parametrize(("smoothing", "expected"), [(0.2, 0.740190), (0.0, 0.440190)])
def test_padding_is_free(smoothing, expected):
    logits, labels = relabelled([3, 0])
    assert cross_entropy_sum(logits, labels, label_smoothing=smoothing).item() == pytest.approx(expected, abs=1e-6)


def test_labels_that_cost_two_nats_each_cost_two_on_average():
    """`abc` and `a` with their end symbols: six labels, two pads, which an average over all eight would count."""
    labels = torch.tensor([[4, 5, 6, 2], [4, 2, 0, 0]])
    logits = torch.full((2, 4, 7), math.log((math.exp(2.0) - 1.0) / 6.0), dtype=torch.float64)
    logits.scatter_(2, labels[..., None], 0.0)  # p(label) = 1 / (1 + 6 · (e² − 1) / 6) = e⁻²
    assert cross_entropy_sum(logits, labels).item() / 6 == pytest.approx(2.0, abs=1e-12)


def test_no_label_is_zero_with_zero_gradient():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = cross_entropy_sum(logits, torch.zeros(2, 3, dtype=torch.int64), label_smoothing=0.1)
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()


def test_bfloat16_is_summed_in_float32():
    logits = torch.randn(3, 50, 7, dtype=torch.bfloat16)
    labels = torch.randint(1, 7, (3, 50))
    loss = cross_entropy_sum(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(cross_entropy_sum(logits.double(), labels).item(), rel=1e-6)


@given(
    smoothing=st.floats(0, 0.9),
    size=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(2, 6)),
    seed=st.integers(0, 1000),
)
def test_against_the_definition(smoothing, size, seed):
    generator = np.random.default_rng(seed)
    logits, labels = generator.normal(size=size), generator.integers(0, size[2], size[:2])
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = (1 - smoothing) * np.eye(size[2])[labels] + smoothing / size[2]
    expected = -(wanted * log_probs).sum(-1)[labels != 0].sum()
    found = cross_entropy_sum(torch.from_numpy(logits), torch.from_numpy(labels), label_smoothing=smoothing)
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
