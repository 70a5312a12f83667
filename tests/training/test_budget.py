import pytest

from unrolled.training.budget import Budget, Pace


def observed(seconds, num_steps, per_step, tokens=10):
    budget = Budget(seconds)
    for step in range(1, num_steps + 1):
        budget.observe(tokens, 100 + step * per_step)
    return budget, 100 + num_steps * per_step


def test_the_first_steps_are_not_measured():
    budget = Budget(10.0)
    for step in range(1, 6):
        budget.observe(1000, step * 5.0)
    assert not budget.is_measured(25.0)
    for step in range(1, 21):
        budget.observe(10, 25.0 + step * 0.1)
    assert budget.is_measured(27.0)
    assert budget.seconds_per_token(27.0) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("num_steps", "per_step", "is_measured"),
    [
        (24, 0.02, False),  # too few steps
        (25, 0.02, True),  # 4 % of 10 seconds
        (25, 0.019, False),  # too short
        (10, 0.5, True),  # a quarter of the budget, although few steps
        (9, 0.5, False),
        (5, 9.0, False),  # nothing beyond the first steps
    ],
)
def test_when_enough_was_seen(num_steps, per_step, is_measured):
    budget, now = observed(10.0, num_steps, per_step)
    assert budget.is_measured(now + 1e-9) == is_measured


def test_steps_that_fit():
    pace = Pace(seconds_per_token=0.01, seconds_per_evaluation=2.0)
    fitting = Budget(100.0).steps_that_fit(pace, seconds=18.0, tokens_per_step=10, steps_per_evaluation=20)
    assert fitting == 400  # 80 seconds, 0.1 of a step and 0.1 of an evaluation each
    assert Budget(10.0).steps_that_fit(pace, seconds=18.0, tokens_per_step=10, steps_per_evaluation=20) == 1


def test_when_it_is_planned():
    due = [
        [Budget(100.0).is_plan_due(plans, seconds) for plans in range(5)] for seconds in (1.0, 19.9, 20.0, 60.0, 99.0)
    ]
    assert due == [
        [True, False, False, False, False],
        [True, False, False, False, False],
        [True, True, False, False, False],
        [True, True, True, True, False],
        [True, True, True, True, False],
    ]


def test_after_the_last_plan_it_is_settled():
    assert [Budget(100.0).is_settled(plans) for plans in range(6)] == [False] * 4 + [True] * 2


def test_a_restart_forgets_what_was_measured():
    budget, now = observed(10.0, 30, 0.02)
    budget.restart()
    assert not budget.is_measured(now)
    for step in range(1, 30):
        budget.observe(10, now + step * 0.4)
    assert budget.seconds_per_token(now + 29 * 0.4) == pytest.approx(0.04)


def test_overrun():
    assert not Budget(100.0).is_exceeded(114.9)
    assert Budget(100.0).is_exceeded(115.1)
