from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.decoding import LengthPenalty
from unrolled.errors import ConfigError, DivergenceError
from unrolled.next_symbol import SamplingPolicy, draw, filtered_probabilities, top_k

levels = st.sampled_from([-3.0, -2.0, -1.0, -0.5, -np.inf])  # few values, so that there are many ties


@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.lists(levels, min_size=n, max_size=n), min_size=1)), st.data())
def test_top_k_is_a_stable_sort(rows, data):
    log_probs = np.array(rows)
    size = log_probs.shape[1]
    k = data.draw(st.integers(1, size + 2))
    banned = data.draw(st.lists(st.integers(0, size + 1), max_size=3))
    ids, values = top_k(log_probs, k, banned=banned)
    for row, found, value in zip(rows, ids, values, strict=True):
        allowed = [-np.inf if i in banned else x for i, x in enumerate(row)]
        right = sorted(range(size), key=lambda i: (-allowed[i], i))[:k]
        assert found.tolist() == right
        assert value.tolist() == [allowed[i] for i in right]


def test_top_k_keeps_its_argument_and_its_dtype():
    log_probs = np.zeros((1, 3), dtype=np.float32)
    _, values = top_k(log_probs, 2, banned=(0,))
    assert values.dtype == np.float32
    assert log_probs.tolist() == [[0, 0, 0]]


def test_top_k_of_nan():
    with pytest.raises(DivergenceError, match="its weights are not finite"):
        top_k(np.array([[0.0, np.nan]]), 1)


P = np.log(np.array([[0.1, 0.4, 0.2, 0.3]]))


@pytest.mark.parametrize(
    ("policy", "right"),
    [
        (SamplingPolicy(), [0.1, 0.4, 0.2, 0.3]),
        (SamplingPolicy(temperature=0.5), np.array([1, 16, 4, 9]) / 30),
        (SamplingPolicy(temperature=2.0), np.sqrt([0.1, 0.4, 0.2, 0.3]) / np.sqrt([0.1, 0.4, 0.2, 0.3]).sum()),
        (SamplingPolicy(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (SamplingPolicy(top_k=9), [0.1, 0.4, 0.2, 0.3]),
        (SamplingPolicy(top_p=0.39), [0, 1, 0, 0]),
        (SamplingPolicy(top_p=0.5), [0, 4 / 7, 0, 3 / 7]),
        (SamplingPolicy(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9]),
        (SamplingPolicy(top_k=3, top_p=0.77), [0, 4 / 7, 0, 3 / 7]),  # 0.7 of what top-k left is 0.778
        (SamplingPolicy(banned=(1, 7)), [1 / 6, 0, 2 / 6, 3 / 6]),
        (SamplingPolicy(banned=(1,), top_k=1), [0, 0, 0, 1]),
        (SamplingPolicy(temperature=1e-3), [0, 1, 0, 0]),
        (SamplingPolicy(temperature=1e6), [0.25] * 4),
    ],
)
def test_filters(policy, right):
    np.testing.assert_allclose(filtered_probabilities(P, policy), [right], atol=1e-6)
    np.testing.assert_allclose(filtered_probabilities(P + 50.0, policy), [right], atol=1e-6)  # logits do as well


@pytest.mark.parametrize("policy", [SamplingPolicy(top_p=0.5), SamplingPolicy(temperature=3.0, top_k=2, top_p=0.9)])
def test_rows_are_filtered_one_by_one(policy):
    rows = np.random.default_rng(0).normal(size=(5, 4))
    found = filtered_probabilities(rows, policy)
    np.testing.assert_allclose(found, np.concatenate([filtered_probabilities(row[None], policy) for row in rows]))
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    uniforms = np.linspace(0.0, 0.99, 5)
    alone = [draw(p[None], u[None])[0] for p, u in zip(found, uniforms, strict=True)]
    assert draw(found, uniforms).tolist() == alone


def test_equal_probabilities_are_filtered_by_lower_id():
    even = np.log(np.full((1, 4), 0.25))
    assert filtered_probabilities(even, SamplingPolicy(top_k=2)).tolist() == [[0.5, 0.5, 0, 0]]
    assert filtered_probabilities(even, SamplingPolicy(top_p=0.6)).tolist() == [[1 / 3, 1 / 3, 1 / 3, 0]]


def test_the_whole_distribution_is_kept_where_nothing_filters():
    """A sum that reaches 1 by rounding must not cut the tail."""
    tail = np.log(np.array([[0.5, 0.5, 1e-20]]))
    assert filtered_probabilities(tail, SamplingPolicy())[0, 2] == pytest.approx(1e-20)


def test_draws_invert_the_cumulative_distribution():
    p = np.array([[0.0, 0.25, 0.0, 0.75, 0.0]])
    for u, right in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.5, 3), (np.nextafter(1.0, 0.0), 3)):
        assert draw(p, np.array([u])).tolist() == [right]
        assert draw(7.0 * p, np.array([u])).tolist() == [right]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9), st.floats(0.0, 1.0, exclude_max=True))
def test_impossible_ids_are_never_drawn(p, u):
    if sum(p) > 1e-300:
        [found] = draw(np.array([p]), np.array([u]))
        assert p[found] > 0.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"temperature": -1.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"temperature": float("inf")}, "temperature must be above 0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\], got 1.1"),
    ],
)
def test_policies_out_of_range(wrong, message):
    with pytest.raises(ConfigError, match=message):
        SamplingPolicy(**wrong)


class TestLengthPenalty:
    @pytest.mark.parametrize(
        ("penalty", "right", "text"),
        [
            (LengthPenalty(), [1, 1, 1], "log_prob"),
            (LengthPenalty("mean"), [1, 2, 7], "log_prob / n, n counts the end symbol"),
            (LengthPenalty("gnmt", 2.0), [1, 49 / 36, 4], "log_prob / ((5 + n) / 6)^2, n counts the end symbol"),
            (LengthPenalty("gnmt", 0.0), [1, 1, 1], "log_prob / ((5 + n) / 6)^0, n counts the end symbol"),
        ],
    )
    def test_values_and_formulas(self, penalty, right, text):
        np.testing.assert_allclose(penalty(np.array([1, 2, 7])), right)
        assert str(penalty) == text

    def test_refusals(self):
        with pytest.raises(ConfigError, match="must be one of none, mean, gnmt, got 'avg'"):
            LengthPenalty("avg")
        for alpha in (-0.1, float("nan"), float("inf")):
            with pytest.raises(ConfigError, match="alpha must be 0 or more"):
                LengthPenalty("gnmt", alpha)
