"""The engine protocol of search over the models."""

import numpy as np
import pytest
import torch
from conftest_models import COMBINATIONS, SIZES, random_weights, settings_of

from unrolled import models
from unrolled.errors import DivergenceError
from unrolled.models.engine import TorchEngine
from unrolled.next_symbol import SamplingPolicy, top_k

SOURCES = [np.array([5, 6, 7, 2, 16]), np.array([4, 2]), np.array([9, 8, 2, 15, 17, 18])]
TARGETS = [np.array([5, 6, 2]), np.array([2]), np.array([12, 11, 10, 9, 2])]


@pytest.fixture(params=COMBINATIONS[::3], ids="-".join)
def engine(request):
    settings = settings_of(*request.param)
    module = models.build(settings, SIZES, random_weights(settings))
    return TorchEngine(module, vocabulary_size=SIZES.target)


def stepped(engine, sources, targets):
    """Log-probabilities of one target at a time, by feeding it."""
    results = []
    for source, target in zip(sources, targets, strict=True):
        stepper, row = engine.start([source]), []
        for number, symbol in enumerate(target):
            row.append(stepper.log_prob_of(np.array([symbol]))[0])
            if number + 1 < len(target):
                stepper.advance(np.array([symbol]))
        results.append(np.array(row))
    return results


def test_scores_equal_stepping(engine):
    for together, alone in zip(engine.log_probs(SOURCES, TARGETS), stepped(engine, SOURCES, TARGETS), strict=True):
        assert len(together) == len(alone)
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-9)


def test_probabilities_sum_to_one_and_agree_with_the_rest(engine):
    stepper = engine.start(SOURCES)
    probabilities = stepper.probabilities()
    assert probabilities.shape == (3, SIZES.target)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-12)
    ids, log_probs = stepper.top_k(SIZES.target, ())
    np.testing.assert_allclose(np.exp(log_probs), np.take_along_axis(probabilities, ids, 1), atol=1e-12)
    np.testing.assert_allclose(stepper.log_prob_of(ids[:, 2]), log_probs[:, 2], atol=1e-12)
    banned, _ = stepper.top_k(4, (int(ids[0, 0]),))
    assert banned[0, 0] == ids[0, 1]


@pytest.mark.parametrize("k", [1, 2, 5, 12, 13, 20])
@pytest.mark.parametrize("levels", [1, 2, 4, 1000])
def test_the_best_symbols_are_those_of_the_definition(k, levels):
    """Rows full of equal values, impossible symbols and banned ones among them: order and ties as in NumPy."""
    settings = settings_of("bilstm", "lstm_general")
    stepper = TorchEngine(models.build(settings, SIZES, random_weights(settings)), vocabulary_size=13).start(SOURCES)
    values = np.random.default_rng(levels).integers(-levels, 0, (50, 13)).astype(np.float64)
    values[::7, 3:] = -np.inf
    stepper._log_probs = torch.from_numpy(values)
    for banned in ((), (0, 1), (2, 99)):
        for found, expected in zip(stepper.top_k(k, banned), top_k(values, k, banned=banned), strict=True):
            np.testing.assert_array_equal(found, expected)
    stepper._log_probs[4, 7] = torch.nan
    with pytest.raises(DivergenceError, match="NaN"):
        stepper.top_k(k, ())


def test_select_keeps_sources_and_reorders_rows(engine):
    stepper = engine.start(SOURCES)
    stepper.select(np.array([0, 0, 2, 2]), np.array([0, 2]))  # two beams of the first and the last source
    assert stepper.num_rows == 4
    stepper.advance(np.array([5, 6, 7, 8]))
    expected = []
    for source, symbol in ((0, 5), (0, 6), (2, 7), (2, 8)):
        single = engine.start([SOURCES[source]])
        single.advance(np.array([symbol]))
        expected.append(single.probabilities()[0])
    np.testing.assert_allclose(stepper.probabilities(), expected, atol=1e-10)


def test_sampling_inverts_the_filtered_distribution(engine):
    stepper = engine.start(SOURCES)
    best, _ = stepper.top_k(1, ())
    only_best = SamplingPolicy(top_k=1)
    np.testing.assert_array_equal(stepper.sample(only_best, np.array([0.0, 0.5, 0.999])), best[:, 0])
    uniforms = np.linspace(0, 1, 2000, endpoint=False)
    drawn = np.array([stepper.sample(SamplingPolicy(), np.full(3, u))[1] for u in uniforms])
    shares = np.bincount(drawn, minlength=SIZES.target) / len(uniforms)
    np.testing.assert_allclose(shares, stepper.probabilities()[1], atol=2e-3)


def test_attention_of_the_last_token(engine):
    stepper = engine.start(SOURCES, need_attention=True)
    if stepper._attention is None:
        pytest.skip("a model without attention")
    weights = stepper.attention()
    assert weights.shape == (3, 6)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-10)
    assert (weights[1, 2:] == 0).all()
    stepper.advance(np.array([4, 5, 6]))
    assert not np.allclose(stepper.attention(), weights)


def test_evaluation_mode_and_no_graph(engine):
    stepper = engine.start(SOURCES)
    assert not engine.model.training
    assert not any(
        leaf.requires_grad
        for leaf in (stepper._log_probs, *torch.utils._pytree.tree_leaves(tuple(stepper._state)))
        if isinstance(leaf, torch.Tensor)
    )


def test_labels_are_scored_in_parts(engine, monkeypatch):
    whole = engine.log_probs(SOURCES, TARGETS)
    monkeypatch.setattr("unrolled.models.engine._CACHED", 3 * SIZES.target)
    for part, row in zip(engine.log_probs(SOURCES, TARGETS), whole, strict=True):
        assert part.tolist() == row.tolist()
