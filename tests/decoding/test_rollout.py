from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_engine import END, TableEngine, table

from unrolled.decoding import LengthPenalty, SamplingPolicy, greedy, sample
from unrolled.errors import ConfigError, DivergenceError, ShapeError, VocabularyError


def sources_of(kinds):
    return [np.array([kind, 9, 9]) for kind in kinds]


def plain_greedy(engine, kind, max_length, prefix=()):
    ids, total, previous, last = [], 0.0, 0, 1
    while len(ids) < max_length:
        log_probs = engine.tables[kind, previous, last].copy()
        log_probs[:2] = -np.inf
        previous, last = last, prefix[len(ids)] if len(ids) < len(prefix) else int(log_probs.argmax())
        total += log_probs[last]
        ids.append(last)
        if last == END:
            return ids[:-1], total, True
    return ids, total, False


seeds = st.integers(0, 10_000)


@given(seed=seeds, kinds=st.lists(st.integers(0, 2), min_size=1, max_size=6), data=st.data())
@settings(max_examples=100, deadline=None)
def test_greedy_takes_the_best_symbol_of_each_source(random_engine, seed, kinds, data):
    engine, count = random_engine(seed), len(kinds)
    limits = data.draw(st.lists(st.integers(1, 8), min_size=count, max_size=count))
    prefixes = data.draw(st.lists(st.lists(st.integers(3, 6), max_size=4), min_size=count, max_size=count))
    found = greedy(
        engine,
        sources_of(kinds),
        max_length=np.array(limits),
        prefixes=[np.array(prefix, dtype=int) for prefix in prefixes],
        penalty=LengthPenalty("mean"),
    )
    for item, kind, limit, prefix in zip(found, kinds, limits, prefixes, strict=True):
        ids, total, is_finished = plain_greedy(engine, kind, limit, prefix)
        assert (item.ids.tolist(), item.is_finished) == (ids, is_finished)
        assert item.log_prob == pytest.approx(total, rel=1e-12)
        assert item.score == pytest.approx(total / (len(ids) + is_finished), rel=1e-12)


def test_ties_go_to_the_lower_id():
    engine = TableEngine(table({1: {3: 0.4, 4: 0.4, END: 0.2}, 3: {END: 0.5, 4: 0.5}}, 5))
    [item] = greedy(engine, sources_of([0]), max_length=9)
    assert item.ids.tolist() == [3]


def test_banned_symbols_are_passed_over():
    engine = TableEngine(table({1: {3: 0.7, 4: 0.3}, 4: {END: 1.0}}, 5))
    [item] = greedy(engine, sources_of([0]), max_length=9, banned=(0, 1, 3))
    assert item.ids.tolist() == [4]


def test_finished_sources_leave_the_batch():
    engine = TableEngine(table({1: {END: 1.0}}, 5), table({1: {3: 1.0}, 3: {3: 1.0}}, 5))
    found = greedy(engine, sources_of([1, 0, 0, 1]), max_length=np.array([4, 4, 4, 2]))
    assert [rows for what, rows, _ in engine.calls if what == "top_k"] == [4, 2, 1, 1]
    assert [sources for what, _, sources in engine.calls if what == "select"] == [2, 1]
    assert [len(item.ids) for item in found] == [4, 0, 0, 2]


@pytest.mark.parametrize("search", [greedy, lambda *args, **options: sample(*args, seed=1, **options)])
def test_attention_belongs_to_the_source(random_engine, search):
    sources = [np.array([kind, *[9] * (2 + kind)]) for kind in (2, 0, 1)]
    found = search(random_engine(5), sources, max_length=6, need_attention=True)
    for kind, item in zip((2, 0, 1), found, strict=True):
        steps = len(item.ids) + item.is_finished
        assert item.attention.shape == (steps, 3 + kind)
        assert item.attention[:, 0].tolist() == [1, *item.ids][:steps]
        assert set(item.attention[:, 2]) == {kind}
    assert search(random_engine(5), sources, max_length=6)[0].attention is None


class TestSampling:
    @given(seed=seeds, kinds=st.lists(st.integers(0, 2), min_size=2, max_size=6))
    @settings(max_examples=50, deadline=None)
    def test_a_line_does_not_depend_on_its_neighbours(self, random_engine, seed, kinds):
        engine = random_engine(seed)
        together = sample(engine, sources_of(kinds), max_length=9, seed=seed)
        for line, kind in enumerate(kinds):
            [alone] = sample(engine, sources_of([kind]), max_length=9, seed=seed, lines=[line])
            assert together[line].ids.tolist() == alone.ids.tolist()
            assert together[line].log_prob == alone.log_prob

    def test_seeds_and_lines_differ(self, random_engine):
        engine = random_engine(0, num_symbols=20)
        outputs = {
            tuple(item.ids.tolist())
            for seed in range(3)
            for item in sample(engine, sources_of([0] * 4), max_length=9, seed=seed, min_length=6)
        }
        assert len(outputs) == 12

    def test_a_longer_limit_changes_nothing_before_it(self, random_engine):
        engine = random_engine(1)
        short = sample(engine, sources_of([0] * 20), max_length=3, seed=0)
        long = sample(engine, sources_of([0] * 20), max_length=30, seed=0)
        assert all(a.ids.tolist() == b.ids[:3].tolist() for a, b in zip(short, long, strict=True))

    def test_log_prob_is_that_of_the_model_and_frequencies_are_those_of_the_filtered_model(self):
        engine = TableEngine(table({1: {3: 0.5, 4: 0.3, 5: 0.2}, 3: {END: 1.0}, 4: {END: 1.0}, 5: {END: 1.0}}, 6))
        policy = SamplingPolicy(temperature=0.5, top_k=2)
        found = sample(engine, sources_of([0] * 4000), max_length=5, seed=7, policy=policy)
        counts = np.bincount([item.ids[0] for item in found], minlength=6) / 4000
        assert counts[3] == pytest.approx(0.25 / 0.34, abs=0.03)
        assert counts[4] == pytest.approx(0.09 / 0.34, abs=0.03)
        assert counts[5] == 0
        assert {round(item.log_prob, 9) for item in found} == {round(np.log(0.5), 9), round(np.log(0.3), 9)}

    def test_top_1_is_greedy(self, random_engine):
        engine, sources = random_engine(4), sources_of([0, 1, 2])
        found = sample(engine, sources, max_length=7, seed=0, policy=SamplingPolicy(top_k=1))
        for item, path in zip(found, greedy(engine, sources, max_length=7), strict=True):
            assert item.ids.tolist() == path.ids.tolist()
            assert item.log_prob == pytest.approx(path.log_prob)

    @pytest.mark.parametrize("min_length", [1, 2, 4])
    def test_the_end_is_not_drawn_before_the_minimum_length(self, min_length):
        engine = TableEngine(table({last: {END: 0.9, 3: 0.1} for last in (1, 3)}, 4))
        found = sample(engine, sources_of([0] * 200), max_length=4, seed=0, min_length=min_length)
        assert min(len(item.ids) + item.is_finished for item in found) == min_length
        assert any(item.is_finished for item in found)

    def test_outputs_may_be_empty(self):
        found = sample(TableEngine(table({1: {END: 1.0}}, 4)), sources_of([0]), max_length=4, seed=0)
        assert [(item.ids.tolist(), item.is_finished, item.log_prob) for item in found] == [([], True, 0.0)]

    def test_bos_and_pad_are_never_drawn(self):
        engine = TableEngine(np.full((5, 5), 0.2))
        found = sample(engine, sources_of([0] * 200), max_length=6, seed=0)
        assert {symbol for item in found for symbol in item.ids.tolist()} == {3, 4}

    def test_forced_beginnings(self, random_engine):
        engine, sources = random_engine(2), sources_of([0, 1])
        prefixes = [np.array([4, 4, 5]), np.array([], dtype=int)]
        found = sample(engine, sources, max_length=9, seed=3, prefixes=prefixes)
        free = sample(engine, sources, max_length=9, seed=3)
        assert found[0].ids[:3].tolist() == [4, 4, 5]
        assert found[1].ids.tolist() == free[1].ids.tolist()
        target = [*found[0].ids, END][: 9 if not found[0].is_finished else None]
        assert found[0].log_prob == pytest.approx(engine.log_probs(sources[:1], [target])[0].sum())

    def test_refusals(self, random_engine):
        engine, sources = random_engine(0), sources_of([0, 1])
        with pytest.raises(ConfigError, match="min_length must be from 1 to max_length, got 5"):
            sample(engine, sources, max_length=np.array([9, 4]), seed=0, min_length=5)
        with pytest.raises(ConfigError, match="min_length must be from 1 to max_length, got 0"):
            sample(engine, sources, max_length=3, seed=0, min_length=0)
        with pytest.raises(ShapeError, match="lines: expected one number a source, 2 in all, got 1"):
            sample(engine, sources, max_length=3, seed=0, lines=[0])

    @pytest.mark.parametrize("search", [greedy, lambda *args, **options: sample(*args, seed=1, **options)])
    def test_a_model_of_nan(self, random_engine, search):
        engine = random_engine(0)
        engine.tables[:] = np.nan
        with pytest.raises(DivergenceError, match="the model gives NaN as log-probability"):
            search(engine, sources_of([0]), max_length=3)


def test_no_sources(random_engine):
    assert greedy(random_engine(0), [], max_length=3) == []
    assert sample(random_engine(0), [], max_length=3, seed=0) == []


def test_an_impossible_prefix(random_engine):
    with pytest.raises(VocabularyError, match=r"forced prefix: .* got \[2\]"):
        greedy(random_engine(0), sources_of([0]), max_length=3, prefixes=[np.array([END])])
