"""Minutes to steps: measured early, and looked at again, so that the schedule ends exactly when the time does."""

from __future__ import annotations

import dataclasses

__all__ = ["Budget", "Pace"]

_WARM_UP_STEPS = 5  # the first steps allocate memory and choose kernels
_MIN_STEPS = 20
_SHARE = 0.04  # of the budget that is measured
_MAX_SHARE = 0.25  # even if fewer than the least steps were taken
_LOOKS = (0.0, 0.2, 0.4, 0.6)  # shares of the budget after which it is planned: other work begins and ends
_OVERRUN = 1.15


@dataclasses.dataclass(frozen=True)
class Pace:
    """What was measured."""

    seconds_per_token: float
    seconds_per_evaluation: float
    """Of one evaluation with its save."""


class Budget:
    """A number of seconds for a whole run, evaluations and saves included.

    Parameters
    ----------
    seconds : float
        The budget.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Measure anew from the next step on."""
        self._num_steps = 0
        self._start: float | None = None
        self._num_tokens = 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Take in a step of so many tokens, after which `seconds` of the run are over."""
        self._num_steps += 1
        if self._num_steps <= _WARM_UP_STEPS:
            self._start = seconds
        else:
            self._num_tokens += num_tokens

    def is_measured(self, seconds: float) -> bool:
        """Whether enough steps were seen for `seconds_per_token`."""
        assert self._start is not None or self._num_steps == 0
        if self._num_tokens == 0 or self._start is None:
            return False
        share = (seconds - self._start) / self.seconds
        return share >= _MAX_SHARE or (share >= _SHARE and self._num_steps >= _WARM_UP_STEPS + _MIN_STEPS)

    def seconds_per_token(self, seconds: float) -> float:
        """Training time of a token, up to now."""
        assert self._start is not None
        return (seconds - self._start) / self._num_tokens

    def steps_that_fit(self, pace: Pace, *, seconds: float, tokens_per_step: float, steps_per_evaluation: int) -> int:
        """Steps that fit into what is left, each with its share of an evaluation, and a last evaluation at the end.

        Parameters
        ----------
        pace : Pace
        seconds : float
            Over already.
        tokens_per_step : float
            Mean over an epoch: early steps may have been longer or shorter than most.
        steps_per_evaluation : int
        """
        left = self.seconds - seconds - pace.seconds_per_evaluation
        per_step = pace.seconds_per_token * tokens_per_step + pace.seconds_per_evaluation / steps_per_evaluation
        return max(1, int(left / per_step))

    def is_plan_due(self, num_plans: int, seconds: float) -> bool:
        """Whether after so many plans and seconds it is time for another."""
        return not self.is_settled(num_plans) and seconds >= _LOOKS[num_plans] * self.seconds

    def is_settled(self, num_plans: int) -> bool:
        """Whether no plan follows so many."""
        return num_plans >= len(_LOOKS)

    def is_exceeded(self, seconds: float) -> bool:
        """Whether the run is so late that it ends before its last step."""
        return seconds > _OVERRUN * self.seconds
