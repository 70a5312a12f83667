"""Learning rate over the steps, as a factor of the base rate."""

from __future__ import annotations

import math

from unrolled.config import Schedule

__all__ = ["rate_factor"]


def rate_factor(schedule: Schedule, step: int, total_steps: int | None) -> float:
    """Factor of the base learning rate at one step; never 0 and never above 1.

    With w warm-up steps, T steps in all and t = `step`, counted from 1:

    ::

        t <= w         t / w
        constant       1
        inverse_sqrt   sqrt(max(w, 1) / t)                        (Vaswani et al. 2017, scaled to 1 at t = w)
        cosine         (1 + cos(pi (t - w) / (T - w + 1))) / 2    (Loshchilov & Hutter 2017, without restarts)

    Parameters
    ----------
    schedule : Schedule
    step : int
        At least 1.
    total_steps : int or None
        T; while it is unknown (a time budget that is still measured), cosine stays at its start.

    Notes
    -----
    T - w + 1 instead of T - w: the last step still has a rate above 0, and w = T divides by no zero.
    """
    warmup = schedule.warmup_steps
    if step <= warmup:
        return step / warmup
    if schedule.type == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / step)
    if schedule.type == "constant" or total_steps is None:
        return 1.0
    progress = (min(step, total_steps) - warmup) / (total_steps - warmup + 1)
    return (1.0 + math.cos(math.pi * progress)) / 2.0
