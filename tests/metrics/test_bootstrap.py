from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unrolled.errors import DataError, ShapeError
from unrolled.metrics import Counts, bootstrap_rate, paired_difference


def counts(errors, trials=None):
    errors = np.asarray(errors)
    return Counts(errors, np.ones_like(errors) if trials is None else np.asarray(trials))


some_counts = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=30).map(
    lambda pairs: counts(*zip(*pairs, strict=True))
)


@given(some_counts, st.integers(0, 1000))
@settings(max_examples=40)
def test_one_seed_one_interval_around_the_rate(found, seed):
    first, again = (bootstrap_rate(found, resamples=200, seed=seed) for _ in range(2))
    assert first == again
    assert first.value == pytest.approx(found.errors.sum() / found.trials.sum())
    rates = found.errors / found.trials
    assert rates.min() - 1e-12 <= first.low <= first.high <= rates.max() + 1e-12


def test_the_interval_of_a_proportion_is_that_of_the_normal_approximation():
    n, p = 4000, 0.3
    estimate = bootstrap_rate(counts(np.arange(n) < p * n), resamples=4000)
    half = 1.96 * np.sqrt(p * (1 - p) / n)
    assert (estimate.low, estimate.high) == pytest.approx((p - half, p + half), abs=0.05 * half)


def test_sources_are_drawn_together_with_their_symbols():
    """Every source has the same rate, so that no resample can differ, however unequal the sources."""
    estimate = bootstrap_rate(counts([1, 2, 50], [2, 4, 100]))
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)


def test_blocks_do_not_change_the_resamples(monkeypatch):
    found = counts(np.arange(50) % 3)
    whole = bootstrap_rate(found, resamples=101)
    monkeypatch.setattr("unrolled.metrics.bootstrap.BLOCK", 500)
    assert bootstrap_rate(found, resamples=101) == whole


def test_resamples_without_any_trial_are_left_out():
    estimate = bootstrap_rate(counts([0, 1], [0, 2]), resamples=100)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.5, 0.5)


class TestPairedDifference:
    def test_a_system_is_not_better_than_itself(self):
        found = paired_difference(*[counts(np.arange(100) % 3 == 0)] * 2)
        assert (found.difference.value, found.difference.low, found.difference.high) == (0.0, 0.0, 0.0)
        assert (found.p_value, found.probability_lower) == (1.0, 0.5)

    def test_pairing_sees_what_two_separate_intervals_hide(self):
        first = np.arange(1000) < 300
        second = first.copy()
        second[:15] = False  # the same errors but 15
        found = paired_difference(counts(first), counts(second))
        assert (found.first, found.second) == (0.3, 0.285)
        assert found.difference.value == pytest.approx(-0.015)
        assert -0.024 < found.difference.low < found.difference.high < -0.006
        assert (found.p_value, found.probability_lower) == (pytest.approx(2 / 1001), 1.0)
        apart = bootstrap_rate(counts(first)), bootstrap_rate(counts(second))
        assert apart[0].low < apart[1].high

    @given(some_counts, st.integers(0, 100))
    @settings(max_examples=30)
    def test_exchanging_the_systems_turns_the_sign(self, found, seed):
        other = Counts(found.errors[::-1].copy(), found.trials[::-1].copy())
        there = paired_difference(found, other, resamples=100, seed=seed)
        back = paired_difference(other, found, resamples=100, seed=seed)
        assert there.difference.value == pytest.approx(-back.difference.value)
        assert (there.difference.low, there.difference.high) == pytest.approx(
            (-back.difference.high, -back.difference.low)
        )
        assert there.p_value == back.p_value
        assert there.probability_lower == pytest.approx(1 - back.probability_lower)

    def test_p_values_of_equal_systems_are_spread_evenly(self):
        rng = np.random.default_rng(0)
        p_values = [
            paired_difference(*(counts(rng.random(200) < 0.3) for _ in range(2)), resamples=200).p_value
            for _ in range(200)
        ]
        assert 0.01 < np.mean(np.array(p_values) < 0.05) < 0.11

    def test_different_numbers_of_sources(self):
        with pytest.raises(ShapeError, match=r"must be of the same sources, got sizes \[\(2,\), \(3,\)\]"):
            paired_difference(counts([1, 0]), counts([1, 0, 1]))


def test_nothing_is_an_error_and_not_nan():
    with pytest.raises(DataError, match=r"^nothing to evaluate: no items$"):
        bootstrap_rate(counts([]))
    with pytest.raises(DataError, match=r"^no reference symbols to score"):
        bootstrap_rate(counts([1, 0], [0, 0]))
    with pytest.raises(DataError, match=r"^no reference symbols to score"):
        paired_difference(counts([1, 0]), counts([1, 0], [0, 0]))


def test_texts():
    assert str(bootstrap_rate(counts([1, 1]))) == "100.00 % [100.00, 100.00]"
    same = paired_difference(counts([1, 0]), counts([1, 0]))
    assert str(same) == "0.00 % [0.00, 0.00], p = 1.000, lower in 50.0 % of resamples"


def test_twelve_thousand_sources_in_well_under_a_second():
    found = counts(np.arange(12_000) % 4 == 0)
    start = time.process_time()
    bootstrap_rate(found)
    assert time.process_time() - start < 1.0
