from __future__ import annotations

import numpy as np
import pytest
from table_engine import END

from unrolled.decoding import Ensemble, LengthPenalty, SamplingPolicy, beam_search, greedy, sample, score
from unrolled.errors import ShapeError, VocabularyError

SOURCES = [np.array([kind, 9, 9]) for kind in (0, 1, 2)]


def outputs(hypotheses):
    return [(item.ids.tolist(), item.is_finished) for item in hypotheses]


@pytest.fixture
def members(random_engine):
    return [random_engine(seed) for seed in (1, 2, 3)]


@pytest.fixture
def mean_engine(members, random_engine):
    engine = random_engine(1)
    with np.errstate(divide="ignore"):
        engine.tables = np.log(np.mean([np.exp(member.tables) for member in members], axis=0))
    return engine


def test_the_mean_of_distributions_is_searched(members, mean_engine):
    ensemble = Ensemble(members)
    for found, right in zip(
        beam_search(ensemble, SOURCES, max_length=6, beam=4, num_best=4),
        beam_search(mean_engine, SOURCES, max_length=6, beam=4, num_best=4),
        strict=True,
    ):
        assert outputs(found) == outputs(right)
        np.testing.assert_allclose([item.log_prob for item in found], [item.log_prob for item in right])
    found, right = (greedy(engine, SOURCES, max_length=6) for engine in (ensemble, mean_engine))
    assert outputs(found) == outputs(right)
    policy = SamplingPolicy(temperature=0.8, top_k=3)
    found, right = (
        sample(engine, SOURCES, max_length=6, seed=5, policy=policy, prefixes=[np.array([4])] * 3)
        for engine in (ensemble, mean_engine)
    )
    assert outputs(found) == outputs(right)
    np.testing.assert_allclose([item.log_prob for item in found], [item.log_prob for item in right])


def test_the_mean_of_distributions_scores(members, mean_engine):
    targets = [np.array([3, 5, END]), np.array([END]), np.array([4, 4])]
    found, right = (score(engine, SOURCES, targets) for engine in (Ensemble(members), mean_engine))
    np.testing.assert_allclose([item.log_prob for item in found], [item.log_prob for item in right])


def test_one_member_is_itself(random_engine):
    engine = random_engine(4)
    alone, inside = (beam_search(e, SOURCES, max_length=6, num_best=5) for e in (engine, Ensemble([engine])))
    for right, found in zip(alone, inside, strict=True):
        assert outputs(found) == outputs(right)
        np.testing.assert_allclose([item.log_prob for item in found], [item.log_prob for item in right], rtol=1e-12)


def test_attention_is_the_mean(members):
    [item] = greedy(Ensemble(members), SOURCES[1:2], max_length=6, need_attention=True)
    [same] = greedy(Ensemble([Ensemble(members)]), SOURCES[1:2], max_length=6, need_attention=True)
    steps = len(item.ids) + item.is_finished
    assert item.attention[:, 0].tolist() == [1, *item.ids][:steps]
    np.testing.assert_allclose(item.attention, same.attention)


def test_rows_are_those_of_the_members(members):
    stepper = Ensemble(members).start(SOURCES)
    stepper.select(np.array([0, 0, 2, 1]), np.array([0, 2]))
    assert stepper.num_rows == 4


def test_very_improbable_targets_do_not_underflow(random_engine):
    engine = random_engine(0)
    engine.tables = engine.tables - 2000.0
    [item] = score(Ensemble([engine, engine]), SOURCES[:1], [np.array([3, END])])
    assert item.log_prob == pytest.approx(engine.log_probs(SOURCES[:1], [[3, END]])[0].sum())


class TestVocabularies:
    def test_sizes(self, random_engine):
        with pytest.raises(VocabularyError, match=r"need equal vocabularies, got \[7, 8\] symbols"):
            Ensemble([random_engine(0), random_engine(0, num_symbols=5)])

    def test_symbols(self, members):
        Ensemble(members[:2], symbols=["abc", "abc"])
        with pytest.raises(VocabularyError, match="models 1 and 3 differ in 'b' and 'x'"):
            Ensemble(members, symbols=["abc", "abc", "axc"])
        with pytest.raises(VocabularyError, match="models 1 and 2 differ in their numbers of symbols"):
            Ensemble(members[:2], symbols=["abc", "abcd"])

    def test_no_member(self):
        with pytest.raises(VocabularyError, match="at least one model, got none"):
            Ensemble([])


class TestScore:
    def test_rescoring_agrees_with_search(self, random_engine):
        engine = random_engine(6)
        for penalty in (LengthPenalty("mean"), LengthPenalty("gnmt", 0.7)):
            [found] = beam_search(engine, SOURCES[:1], max_length=4, beam=9, num_best=9, penalty=penalty)
            targets = [np.append(item.ids, END) if item.is_finished else item.ids for item in found]
            again = score(engine, SOURCES[:1] * len(found), targets, penalty=penalty)
            assert outputs(again) == outputs(found)
            np.testing.assert_allclose([item.log_prob for item in again], [item.log_prob for item in found], atol=1e-5)
            np.testing.assert_allclose([item.score for item in again], [item.score for item in found], atol=1e-5)

    def test_refusals(self, random_engine):
        with pytest.raises(ShapeError, match="expected one target a source, 3 in all, got 1"):
            score(random_engine(0), SOURCES, [np.array([END])])
        with pytest.raises(ShapeError, match="target 2 is empty; the empty output is one EOS"):
            score(random_engine(0), SOURCES[:2], [np.array([END]), np.array([], dtype=int)])
