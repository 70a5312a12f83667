"""The engine protocol over NumPy models, and the PyTorch engine's answers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from reference_cases import ARCHITECTURES, NAMES, SIZES, numpy_model, random_weights, settings_of

from unrolled import reference
from unrolled.decoding import Engine, beam_search, greedy
from unrolled.next_symbol import SamplingPolicy
from unrolled.reference.engine import NumpyEngine

SOURCES = [np.array([5, 6, 7, 2, 16], np.int32), np.array([4, 2], np.int32), np.array([9, 8, 2, 15, 17, 18], np.int32)]
TARGETS = [np.array([5, 6, 2], np.int32), np.array([2], np.int32), np.array([12, 11, 10, 9, 2], np.int32)]
V = SIZES.target


@pytest.fixture(params=ARCHITECTURES[::3], ids=NAMES[::3])
def engine(request) -> Engine:
    return NumpyEngine(numpy_model(*request.param), vocabulary_size=V)


def test_scores_equal_stepping(engine):
    for scores, source, target in zip(engine.log_probs(SOURCES, TARGETS), SOURCES, TARGETS, strict=True):
        stepper, alone = engine.start([source]), []
        for symbol in target:
            alone.append(stepper.log_prob_of(np.array([symbol]))[0])
            stepper.advance(np.array([symbol]))
        np.testing.assert_allclose(scores, alone, rtol=0, atol=1e-12)


def test_answers_agree_with_each_other(engine):
    stepper = engine.start(SOURCES)
    assert stepper.num_rows == 3
    probabilities = stepper.probabilities()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-12)
    ids, log_probs = stepper.top_k(V + 3, ())
    assert ids.shape == (3, V)
    assert np.all(np.diff(log_probs, axis=1) <= 0)
    np.testing.assert_allclose(np.exp(log_probs), np.take_along_axis(probabilities, ids, axis=1), atol=1e-12)
    np.testing.assert_allclose(stepper.log_prob_of(ids[:, 2]), log_probs[:, 2])
    banned = int(ids[0, 0])
    assert stepper.top_k(1, (banned,))[0][0, 0] == ids[0, 1]


def test_select_reorders_rows_and_drops_sources(engine):
    stepper = engine.start(SOURCES, need_attention=True)
    stepper.select(np.array([2, 2, 0, 0]), np.array([2, 0]))
    assert stepper.num_rows == 4
    stepper.advance(np.array([5, 6, 7, 8]))
    for row, (source, symbol) in enumerate([(2, 5), (2, 6), (0, 7), (0, 8)]):
        alone = engine.start([SOURCES[source]], need_attention=True)
        alone.advance(np.array([symbol]))
        np.testing.assert_allclose(stepper.probabilities()[row], alone.probabilities()[0], rtol=0, atol=1e-12)


def test_sampling_inverts_the_filtered_distribution(engine):
    stepper = engine.start(SOURCES)
    best = stepper.top_k(1, ())[0][:, 0]
    np.testing.assert_array_equal(stepper.sample(SamplingPolicy(top_k=1), np.full(3, 0.99)), best)
    policy = SamplingPolicy(banned=tuple(int(symbol) for symbol in best))
    assert not set(stepper.sample(policy, np.full(3, 0.5))) & set(best)
    cumulative = np.cumsum(stepper.probabilities()[0])
    drawn = stepper.sample(SamplingPolicy(), np.array([0.4, 0.4, 0.4]))[0]
    assert cumulative[drawn] > 0.4 >= cumulative[drawn] - stepper.probabilities()[0, drawn] - 1e-12


def test_attention_is_that_of_the_last_symbol():
    engine = NumpyEngine(numpy_model("bilstm", "gru_scaled"), vocabulary_size=V)
    stepper = engine.start(SOURCES, need_attention=True)
    first = stepper.attention()
    np.testing.assert_allclose(first.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(first[1, 2:], 0.0)
    stepper.advance(np.array([5, 6, 7]))
    assert not np.allclose(stepper.attention(), first)


@pytest.mark.parametrize(("encoder", "decoder"), ARCHITECTURES, ids=NAMES)
def test_the_torch_engine_gives_the_same_answers(encoder, decoder):
    models, engines = pytest.importorskip("unrolled.models"), pytest.importorskip("unrolled.models.engine")
    settings = settings_of(encoder, decoder)
    weights = {name: weight.astype(np.float32) for name, weight in random_weights(settings, SIZES).items()}
    ours = NumpyEngine(reference.build(settings, SIZES, weights), vocabulary_size=V)
    theirs = engines.TorchEngine(models.build(settings, SIZES, weights), vocabulary_size=V)
    for mine, other in zip(ours.log_probs(SOURCES, TARGETS), theirs.log_probs(SOURCES, TARGETS), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-4)
    steppers = ours.start(SOURCES), theirs.start(SOURCES)
    rows = np.repeat(np.arange(3), 2)
    for stepper in steppers:
        stepper.select(rows)
    for _ in range(5):
        (ids, mine), (their_ids, other) = (stepper.top_k(2, (0, 1)) for stepper in steppers)
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-4)
        is_clear = np.abs(np.diff(mine, axis=1)) > 1e-5
        np.testing.assert_array_equal(ids[is_clear[:, 0]], their_ids[is_clear[:, 0]])
        for stepper in steppers:
            stepper.advance(ids[np.arange(6), np.arange(6) % 2])


@pytest.mark.parametrize(("encoder", "decoder"), ARCHITECTURES[1::6], ids=NAMES[1::6])
def test_search_finds_the_same_strings_with_either_engine(encoder, decoder):
    models, engines = pytest.importorskip("unrolled.models"), pytest.importorskip("unrolled.models.engine")
    settings, rng = settings_of(encoder, decoder), np.random.default_rng(3)
    weights = {name: weight.astype(np.float32) for name, weight in random_weights(settings, SIZES).items()}
    ours = NumpyEngine(reference.build(settings, SIZES, weights), vocabulary_size=V)
    theirs = engines.TorchEngine(models.build(settings, SIZES, weights), vocabulary_size=V)
    words = [np.append(rng.integers(4, 15, rng.integers(1, 9)), 2) for _ in range(50)]
    for search in (greedy, partial(beam_search, beam=4, num_best=2)):
        pairs = zip(search(ours, words, max_length=12), search(theirs, words, max_length=12), strict=True)
        for mine, other in pairs:
            best = [found[0] if isinstance(found, list) else found for found in (mine, other)]
            assert best[0].log_prob == pytest.approx(best[1].log_prob, abs=1e-4)
            if isinstance(mine, list) and mine[0].score - mine[-1].score < 1e-4:
                continue  # too close for float32 to tell
            np.testing.assert_array_equal(best[0].ids, best[1].ids)
