import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.config import Schedule
from unrolled.training import rate_factor


def factors(kind, warmup, total):
    schedule = Schedule(type=kind, warmup_steps=warmup)
    return [rate_factor(schedule, step, total) for step in range(1, total + 1)]


def test_inverse_square_root_without_warm_up():
    assert factors("inverse_sqrt", 0, 5) == pytest.approx([1, 0.70711, 0.57735, 0.5, 0.44721], abs=5e-6)


def test_inverse_square_root_after_warm_up():
    assert factors("inverse_sqrt", 4, 5) == pytest.approx([0.25, 0.5, 0.75, 1, 0.89443], abs=5e-6)


@pytest.mark.parametrize("kind", ["cosine", "inverse_sqrt", "constant"])
def test_warm_up_of_the_whole_length(kind):
    assert factors(kind, 5, 5) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])


def test_cosine():
    expected = [0.5, 1] + [(1 + math.cos(math.pi * k / 4)) / 2 for k in (1, 2, 3)]
    assert factors("cosine", 2, 5) == pytest.approx(expected)


def test_cosine_without_warm_up():
    assert factors("cosine", 0, 1) == pytest.approx([0.5])


def test_constant():
    assert factors("constant", 2, 4) == [0.5, 1, 1, 1]


def test_while_the_end_is_unknown():
    schedule = Schedule(type="cosine", warmup_steps=2)
    assert [rate_factor(schedule, step, None) for step in (1, 2, 3, 100)] == [0.5, 1, 1, 1]


@given(
    kind=st.sampled_from(["cosine", "inverse_sqrt", "constant"]),
    warmup=st.integers(0, 30),
    total=st.integers(1, 60),
)
def test_above_zero_and_at_most_the_base_rate(kind, warmup, total):
    values = factors(kind, warmup, total)
    assert all(0 < value <= 1 for value in values)
    rising, falling = values[:warmup], values[max(warmup - 1, 0) :]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
