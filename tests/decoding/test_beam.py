from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_engine import END, TableEngine, table

from unrolled.decoding import LengthPenalty, beam_search, greedy
from unrolled.errors import ConfigError, DivergenceError, ShapeError, VocabularyError

SOURCE = np.array([0, 9, 9])


def words(hypotheses, letters="....ab"):
    return ["".join(letters[i] for i in item.ids) for item in hypotheses]


def first(engine, **options):
    return beam_search(engine, [SOURCE], max_length=20, **options)[0]


class TestPublishedFaults:
    """A search that stopped at the first end symbol, and n-best lists full of twins."""

    @pytest.mark.parametrize(
        ("penalty", "output", "score"),
        [
            (LengthPenalty("none"), "", -0.6931),
            (LengthPenalty("mean"), "ab", -0.3004),
            (LengthPenalty("gnmt", 0.7), "", -0.6931),
        ],
    )
    def test_search_goes_on_past_the_first_end(self, early_stop_engine, penalty, output, score):
        [best] = first(early_stop_engine, beam=2, penalty=penalty)
        assert words([best]) == [output]
        assert best.score == pytest.approx(score, abs=5e-5)

    def test_both_readings_of_the_runner_up(self, early_stop_engine):
        empty, ab = first(early_stop_engine, beam=2, num_best=2)
        assert words([empty, ab]) == ["", "ab"]
        assert [empty.log_prob, ab.log_prob] == pytest.approx([-0.6931, -0.9011], abs=5e-5)
        gnmt = first(early_stop_engine, beam=2, num_best=2, penalty=LengthPenalty("gnmt", 0.7))
        assert gnmt[1].score == pytest.approx(-0.7367, abs=5e-5)

    def test_greedy_and_beam_1_take_the_likelier_first_symbol(self, twins_engine):
        [one] = first(twins_engine, beam=1)
        [path] = greedy(twins_engine, [SOURCE], max_length=20)
        assert words([one, path], "....xy") == ["xy", "xy"]
        assert np.exp([one.log_prob, path.log_prob]) == pytest.approx([0.1998, 0.1998])

    @pytest.mark.parametrize("beam", [2, 3, 5, 10, 50])
    def test_a_beam_finds_the_best(self, twins_engine, beam):
        [best] = first(twins_engine, beam=beam)
        assert words([best], "....xy") == ["y"]
        assert np.exp(best.log_prob) == pytest.approx(0.36)

    def test_a_beam_wider_than_the_vocabulary(self, twins_engine):
        top = first(twins_engine, beam=10, num_best=10)
        assert words(top, "....xy")[:3] == ["y", "xy", "x"]
        assert np.exp([item.log_prob for item in top[:3]]) == pytest.approx([0.36, 0.1998, 0.18])
        assert len(set(words(top))) == len(top) == 10


def enumerate_outputs(engine, kind, max_length, penalty):
    """All outputs of a table model: (is_finished, score, ids), best first."""
    symbols = range(END + 1, engine.vocabulary_size)
    found = []
    for n in range(max_length + 1):
        for ids in itertools.product(symbols, repeat=n):
            finished = n < max_length
            target = [*ids, END] if finished else list(ids)
            log_prob = engine.log_probs([[kind]], [target])[0].sum()
            found.append((finished, log_prob / float(penalty(len(target))), ids))
    return sorted(found, key=lambda item: (-item[0], -item[1]))


penalties = st.sampled_from([LengthPenalty("none"), LengthPenalty("mean"), LengthPenalty("gnmt", 0.8)])


@given(seed=st.integers(0, 10_000), penalty=penalties, max_length=st.integers(1, 4), num_best=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_an_exhaustive_beam_agrees_with_enumeration(random_engine, seed, penalty, max_length, num_best):
    engine = random_engine(seed, num_symbols=3)
    [found] = beam_search(engine, [SOURCE], max_length=max_length, beam=200, num_best=num_best, penalty=penalty)
    expected = enumerate_outputs(engine, 0, max_length, penalty)[:num_best]
    assert [(item.is_finished, tuple(item.ids)) for item in found] == [(item[0], item[2]) for item in expected]
    np.testing.assert_allclose([item.score for item in found], [item[1] for item in expected], rtol=1e-12)


def plain_beam(engine, kind, max_length, beam, num_best, penalty):
    """The same search for one source, with Python lists."""
    items, finished, unfinished = [(0.0, ())], [], []
    for length in range(1, max_length + 1):
        extensions = [
            (total + engine.tables[kind, *(0, 1, *ids)[-2:], symbol], (*ids, symbol))
            for total, ids in items
            for symbol in range(END, engine.vocabulary_size)
        ]
        extensions.sort(key=lambda item: -item[0])
        finished += [(t / float(penalty(length)), t, ids[:-1]) for t, ids in extensions[:beam] if ids[-1] == END]
        finished.sort(key=lambda item: -item[0])
        items = [item for item in extensions if item[1][-1] != END][:beam]
        if length == max_length:
            unfinished = [(t / float(penalty(length)), t, ids) for t, ids in items]
        elif len(finished) >= num_best and finished[num_best - 1][0] >= items[0][0] / float(penalty(max_length)):
            break
    marked = [(True, *item) for item in finished] + [(False, *item) for item in unfinished]
    return marked[:num_best]


@given(
    seed=st.integers(0, 10_000),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    beam=st.integers(1, 8),
    penalty=penalties,
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_a_batch_agrees_with_the_plain_search_of_each_source(random_engine, seed, limits, beam, penalty, data):
    engine = random_engine(seed)
    num_best = data.draw(st.integers(1, beam))
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=len(limits), max_size=len(limits)))
    sources = [np.array([kind, 9, 9]) for kind in kinds]
    found = beam_search(engine, sources, max_length=np.array(limits), beam=beam, num_best=num_best, penalty=penalty)
    for hypotheses, kind, limit in zip(found, kinds, limits, strict=True):
        expected = plain_beam(engine, kind, limit, beam, num_best, penalty)
        assert [(item.is_finished, tuple(item.ids)) for item in hypotheses] == [(e[0], e[3]) for e in expected]
        np.testing.assert_allclose([item.score for item in hypotheses], [e[1] for e in expected], rtol=1e-12)
        np.testing.assert_allclose([item.log_prob for item in hypotheses], [e[2] for e in expected], rtol=1e-12)


@given(seed=st.integers(0, 10_000), max_length=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_beam_1_is_greedy(random_engine, seed, max_length):
    engine, sources = random_engine(seed), [np.array([kind, 9, 9]) for kind in (0, 1, 2, 1)]
    paths = greedy(engine, sources, max_length=max_length)
    beams = beam_search(engine, sources, max_length=max_length, beam=1)
    for path, [one] in zip(paths, beams, strict=True):
        assert (path.ids.tolist(), path.is_finished) == (one.ids.tolist(), one.is_finished)
        assert (path.log_prob, path.score) == pytest.approx((one.log_prob, one.score), rel=1e-12)


@given(seed=st.integers(0, 10_000), beam=st.integers(1, 12), max_length=st.integers(1, 9), penalty=penalties)
@settings(max_examples=60, deadline=None)
def test_n_best_lists_are_distinct_sorted_and_rescored(random_engine, seed, beam, max_length, penalty):
    engine = random_engine(seed)
    [found] = beam_search(engine, [SOURCE], max_length=max_length, beam=beam, num_best=beam, penalty=penalty)
    assert len({tuple(item.ids) for item in found}) == len(found)
    assert found == sorted(found, key=lambda item: (-item.is_finished, -item.score))
    for item in found:
        target = [*item.ids, END] if item.is_finished else item.ids
        assert not np.isin(item.ids, [0, 1, END]).any()
        assert len(target) <= max_length
        assert item.log_prob == pytest.approx(engine.log_probs([SOURCE], [target])[0].sum(), abs=1e-5)


class TestTies:
    def test_equal_symbols_and_equal_rows(self):
        engine = TableEngine(table({1: {4: 0.5, 5: 0.5}, 4: {END: 0.5, 4: 0.5}, 5: {END: 0.5, 4: 0.5}}, 6))
        [found] = beam_search(engine, [SOURCE], max_length=3, beam=3, num_best=3)
        assert [item.ids.tolist() for item in found] == [[4], [5], [4, 4]]

    def test_a_symbol_as_likely_as_the_end(self):
        engine = TableEngine(table({1: {END: 0.5, 3: 0.5}, 3: {END: 1.0}}, 5))
        [found] = beam_search(engine, [SOURCE], max_length=3, beam=2, num_best=2)
        assert [item.ids.tolist() for item in found] == [[], [3]]


def test_finished_sources_leave_the_batch():
    stops = table({1: {4: 1.0}, 4: {END: 1.0}}, 5)
    runs = table({1: {3: 0.9, 4: 0.1}, 3: {3: 1.0}, 4: {3: 1.0}}, 5)
    engine = TableEngine(stops, runs)
    found = beam_search(engine, [np.array([kind, 9, 9]) for kind in (0, 1, 0)], max_length=5, beam=2)
    assert [rows for what, rows, _ in engine.calls if what == "top_k"] == [3, 6, 2, 2, 2]
    assert [sources for what, _, sources in engine.calls if what == "select"] == [None, 1, None, None]
    assert [item[0].ids.tolist() for item in found] == [[4], [3] * 5, [4]]
    assert [item[0].is_finished for item in found] == [True, False, True]


def test_finished_outputs_come_before_better_unfinished_ones():
    engine = TableEngine(table({1: {3: 0.99, END: 0.01}, 3: {3: 1.0}}, 4))
    [found] = beam_search(engine, [SOURCE], max_length=4, beam=2, num_best=2)
    assert [(item.ids.tolist(), item.is_finished) for item in found] == [([], True), ([3, 3, 3, 3], False)]
    assert found[0].score < found[1].score


@pytest.mark.parametrize("beam", [1, 3])
def test_attention_belongs_to_the_path(random_engine, beam):
    """The table stepper's attention tells (last symbol, time, source kind)."""
    engine, sources = random_engine(5), [np.array([kind, *[9] * (2 + kind)]) for kind in (2, 0, 1)]
    found = beam_search(engine, sources, max_length=6, beam=beam, num_best=beam, need_attention=True)
    for kind, hypotheses in zip((2, 0, 1), found, strict=True):
        for item in hypotheses:
            steps = len(item.ids) + item.is_finished
            assert item.attention.shape == (steps, 3 + kind)
            assert item.attention[:, 0].tolist() == [1, *item.ids][:steps]
            assert item.attention[:, 1].tolist() == list(range(steps))
            assert set(item.attention[:, 2]) == {kind}
    assert beam_search(engine, sources, max_length=6)[0][0].attention is None


class TestPrefixes:
    def test_every_output_begins_with_its_prefix(self, random_engine):
        engine, sources = random_engine(3), [np.array([kind, 9, 9]) for kind in (0, 1, 2)]
        prefixes = [np.array([5, 3, 5]), np.array([], dtype=int), np.array([6])]
        found = beam_search(engine, sources, max_length=8, beam=4, num_best=4, prefixes=prefixes)
        free = beam_search(engine, sources, max_length=8, beam=4, num_best=4)
        for hypotheses, source, prefix in zip(found, sources, prefixes, strict=True):
            assert len(hypotheses) == 4
            for item in hypotheses:
                assert item.ids[: len(prefix)].tolist() == prefix.tolist()
                target = [*item.ids, END] if item.is_finished else item.ids
                assert item.log_prob == pytest.approx(engine.log_probs([source], [target])[0].sum(), rel=1e-12)
        assert [item.ids.tolist() for item in found[1]] == [item.ids.tolist() for item in free[1]]

    def test_extreme_symbols(self, random_engine):
        [[item]] = beam_search(random_engine(3), [SOURCE], max_length=2, prefixes=[np.array([3, 6])])
        assert item.ids.tolist() == [3, 6]

    def test_a_prefix_may_be_all_there_is_room_for(self, random_engine):
        [[item]] = beam_search(random_engine(3), [SOURCE], max_length=2, beam=2, prefixes=[np.array([5, 3, 4])])
        assert (item.ids.tolist(), item.is_finished) == ([5, 3], False)

    @pytest.mark.parametrize("prefix", [[END], [4, END], [-1], [0], [1], [7]])
    def test_impossible_prefixes(self, random_engine, prefix):
        with pytest.raises(VocabularyError, match=r"forced prefix: expected symbols, ids from 3 to 6, got"):
            beam_search(random_engine(0), [SOURCE], max_length=3, prefixes=[np.array(prefix)])

    def test_one_prefix_a_source(self, random_engine):
        with pytest.raises(ShapeError, match="expected one a source, 1 in all, got 2"):
            beam_search(random_engine(0), [SOURCE], max_length=3, prefixes=[np.array([4])] * 2)


def test_banned_symbols_never_appear(random_engine):
    [found] = beam_search(random_engine(1), [SOURCE], max_length=5, beam=50, num_best=50, banned=(0, 1, 3, 5))
    assert len(found) == 50
    assert {symbol for item in found for symbol in item.ids.tolist()} == {4, 6}


def test_no_sources():
    assert beam_search(TableEngine(table({}, 5)), [], max_length=3) == []


class TestRefusals:
    @pytest.mark.parametrize("options", [{"beam": 0}, {"beam": 2, "num_best": 3}, {"num_best": 0}])
    def test_beam_and_num_best(self, random_engine, options):
        with pytest.raises(ConfigError, match="beam search needs 1 <= num_best <= beam"):
            beam_search(random_engine(0), [SOURCE], max_length=3, **options)

    def test_lengths(self, random_engine):
        with pytest.raises(ConfigError, match=r"max_length must be at least 1 .* got 0"):
            beam_search(random_engine(0), [SOURCE, SOURCE], max_length=np.array([1, 0]))
        with pytest.raises(ShapeError, match=r"expected one number or 1, one a source, got shape \(2,\)"):
            beam_search(random_engine(0), [SOURCE], max_length=np.array([1, 3]))

    def test_a_model_of_nan(self, random_engine):
        engine = random_engine(0)
        engine.tables[:, :, 4] = np.nan
        with pytest.raises(DivergenceError, match="the model gives NaN"):
            beam_search(engine, [SOURCE], max_length=9, beam=4)
