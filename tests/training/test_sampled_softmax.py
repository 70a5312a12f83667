"""The softmax from a sample: its probabilities, that it has no bias, and the training that uses it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unrolled.config import Training
from unrolled.text import PAD
from unrolled.training import sampled_softmax
from unrolled.training.objective import cross_entropy_sum
from unrolled.training.sampled_softmax import SampledSoftmax, _inclusion

V, SIZE = 40, 12


@given(st.lists(st.floats(1.0, 1e4), min_size=3, max_size=30), st.data())
def test_probabilities_sum_to_the_size_and_follow_the_weights(weights, data):
    size = data.draw(st.integers(1, len(weights) - 1))
    found = _inclusion(np.array(weights), size)
    assert found.sum() == pytest.approx(size)
    assert (found > 0.0).all()
    assert (found <= 1.0).all()
    open_ = found < 1.0 - 1e-9
    ratios = found[open_] / np.array(weights)[open_]
    assert np.ptp(ratios) <= 1e-9 * ratios.max(initial=0.0)
    assert open_.any()
    assert found[~open_].size == 0 or np.array(weights)[~open_].min() >= np.array(weights)[open_].max() * (1 - 1e-9)


def test_frequent_symbols_are_certain_and_a_hundredfold_count_is_tenfold_as_likely():
    counts = np.array([0, 10**6, 10**6, 9999, 99, 99, 0, 0])
    found = SampledSoftmax(counts, 4, seed=0)._inclusion
    assert found[[PAD, 1, 2]].tolist() == [1.0, 1.0, 1.0]
    assert found[4] / found[6] == pytest.approx(10.0)
    assert 0.0 < found[6] == found[7] < found[4] < 1.0
    assert found.sum() == pytest.approx(4.0)


@pytest.fixture
def sampled():
    return SampledSoftmax(np.arange(V)[::-1] ** 3, SIZE, seed=3)


def full_logits(seed=0, rows=(2, 3)):
    return torch.randn(*rows, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_classes_of_a_step_are_its_own_and_the_same_again(sampled):
    labels = np.array([[39, 5, PAD]])
    first, again, other = (sampled.classes(labels, step=step) for step in (1, 1, 2))
    assert first.ids.tolist() == again.ids.tolist() != other.ids.tolist()
    for classes in (first, other):
        assert classes.ids[classes.columns].tolist() == labels.tolist()
        assert classes.ids.tolist() == sorted(set(classes.ids.tolist()))
    assert SampledSoftmax(np.arange(V)[::-1] ** 3, SIZE, seed=4).classes(labels, step=1).ids.tolist() != (
        first.ids.tolist()
    )


def test_the_sum_over_all_classes_is_estimated_without_bias(sampled):
    logits, labels = full_logits(), np.array([[39, 5, 20], [0, 12, 39]])
    sums, sizes = [], []
    for step in range(4000):
        classes = sampled.classes(labels, step=step)
        sums.append(classes.weighted(logits[..., classes.ids]).exp().sum(-1))
        sizes.append(len(classes.ids))
    mean, spread = torch.stack(sums).mean(0), torch.stack(sums).std(0) / 4000**0.5
    assert spread.max() > 0.0
    assert ((mean - logits.exp().sum(-1)).abs() < 5.0 * spread + 1e-9).all()
    assert SIZE < np.mean(sizes) < SIZE + 6  # the labels that are not in the sample


def test_a_label_counts_once_however_it_came_in(sampled):
    """The row of a label alone sees it; to all other rows it is there only if it was sampled."""
    labels = np.array([[39, 38]])
    classes = next(
        found for step in range(99) if not (found := sampled.classes(labels, step=step)).log_weight[-1].isfinite()
    )
    weighted = classes.weighted(torch.zeros(1, 2, len(classes.ids)))
    assert classes.ids[-1] == 39
    assert weighted[0, 0, -1] == 0.0
    assert weighted[0, 1, -1] == -torch.inf
    assert weighted[0, 1, classes.columns[0, 1]] == 0.0


def test_the_gradient_of_the_loss_comes_near_that_of_all_classes():
    """Averaged over samples; logits that differ little leave little of the bias of the logarithm."""
    sampled, labels = SampledSoftmax(np.arange(V)[::-1], 28, seed=0), np.array([[39, 5, 20], [PAD, 12, 3]])
    logits = (0.3 * full_logits()).requires_grad_()
    (exact,) = torch.autograd.grad(cross_entropy_sum(logits, torch.from_numpy(labels)), logits)
    total = torch.zeros_like(logits)
    for step in range(600):
        classes = sampled.classes(labels, step=step)
        loss = cross_entropy_sum(classes.weighted(logits[..., classes.ids]), classes.columns)
        total += torch.autograd.grad(loss, logits)[0]
    assert (total[1, 0] == 0.0).all()  # padding
    assert (total / 600 - exact).abs().max() < 0.015
    assert exact.abs().max() > 0.5


def test_half_precision_logits_are_weighted_in_float32(sampled):
    classes = sampled.classes(np.array([[7]]), step=1)
    weighted = classes.weighted(torch.zeros(1, 1, len(classes.ids), dtype=torch.bfloat16))
    assert weighted.dtype == torch.float32


def test_counts_come_from_the_text_and_a_small_vocabulary_needs_no_sample(monkeypatch):
    tokens = np.array([5] * 900 + [6] * 30 + [7])
    monkeypatch.setattr(sampled_softmax, "_COUNTED", 100)
    settings = Training(max_steps=1, softmax_sample=100)
    found = SampledSoftmax.of_text(tokens, settings, num_symbols=150)
    expected = SampledSoftmax(np.bincount(tokens, minlength=150), 100, seed=0)
    assert found._inclusion.tolist() == expected._inclusion.tolist()
    assert SampledSoftmax.of_text(tokens, settings, num_symbols=100) is None
    assert SampledSoftmax.of_text(tokens, Training(max_steps=1), num_symbols=150) is None
