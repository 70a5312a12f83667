"""What a run's log of events tells about its training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unrolled.diagnosis.findings import Finding, Where, finding

__all__ = [
    "ENOUGH_STEPS",
    "check_dev_values",
    "check_halt",
    "check_progress",
    "check_skipped_steps",
    "check_start",
    "num_steps",
]

Record = Mapping[str, Any]

ENOUGH_STEPS = 200
"""Fewer steps say nothing about progress: the usual warm-up is as long."""
STUCK = 0.99
"""Of ln V: a model that only learns that padding and the start symbol never come is already lower."""
FEW_SKIPPED = 0.01
WORSE, RISE = 1.3, 0.05
"""Last dev value over the best one, and least difference; dev values of neighbouring steps differ by less."""


def num_steps(events: Sequence[Record]) -> int:
    """Steps that were taken or skipped."""
    return max((int(event["step"]) for event in events), default=0)


def check_start(events: Sequence[Record], num_symbols: int) -> list[Finding]:
    """Whether the first loss was at most ln V + 1, as that of a fresh model is.

    Parameters
    ----------
    events : sequence of mappings
        Records of `metrics.jsonl`.
    num_symbols : int
        V, the symbols that the model can write.
    """
    first = next((event for event in events if event["event"] == "StepTaken"), None)
    chance = math.log(num_symbols)
    if first is None or first["step"] != 1 or (first["loss"] or 0.0) <= chance + 1:
        return []
    measured = f"loss {first['loss']:.3f} at the first step, ln V = ln {num_symbols} = {chance:.3f}"
    return [finding("first_loss", measured, where=Where("the training log", 1))]


def check_progress(events: Sequence[Record], num_symbols: int) -> list[Finding]:
    """Whether the loss has left ln V, judged by the mean of the last tenth of the steps."""
    steps = [event for event in events if event["event"] == "StepTaken" and event["loss"] is not None]
    if len(steps) < ENOUGH_STEPS:
        return []
    chance = math.log(num_symbols)
    late = float(np.mean([step["loss"] for step in steps[-(len(steps) // 10) :]]))
    if late < STUCK * chance:
        return []
    peak = max(step["learning_rate"] for step in steps)
    measured = (
        f"mean loss {late:.3f} over the last {len(steps) // 10} of {len(steps)} steps, ln V = {chance:.3f}; the highest"
        f" learning rate was {peak:.3g}"
    )
    return [finding("loss_stuck", measured, where=Where("the training log", steps[-1]["step"]))]


def check_skipped_steps(events: Sequence[Record]) -> list[Finding]:
    """Whether gradients were finite: a run that ended by them is broken, over 1 % of skipped steps are suspect."""
    skipped = [event for event in events if event["event"] == "StepSkipped" and event["parameter"]]
    if not skipped:
        return []
    ended = next((event for event in events if event["event"] == "TrainingHalted"), None)
    total, first = num_steps(events), skipped[0]
    measured = (
        f"{len(skipped)} of {total} steps had a gradient that was not finite, the first at step {first['step']} in"
        f" {first['parameter']}"
    )
    where = Where(first["parameter"], first["step"], first["lines"][0] if first["lines"] else None)
    if ended is not None and ended["fault"] == "non_finite":
        return [finding("non_finite", measured + "; training could not go on", where=where)]
    return [finding("steps_skipped", measured, where=where)] if len(skipped) > FEW_SKIPPED * total else []


def check_halt(events: Sequence[Record]) -> list[Finding]:
    """Why the watch ended the training, if it did."""
    halts = [event for event in events if event["event"] == "TrainingHalted" and event["fault"] != "non_finite"]
    return [finding(one["fault"], one["message"], where=Where("the training log", one["step"])) for one in halts[-1:]]


def check_dev_values(events: Sequence[Record]) -> list[Finding]:
    """Whether the dev value that chooses weights got much worse after a best one in the first half of training."""
    values = [
        (event["step"], event["value"], event["metric"])
        for event in events
        if event["event"] == "Evaluated" and event["weights"] == "current" and event["value"] is not None
    ]
    if len(values) < 4:
        return []
    best_step, best, metric = min(values, key=lambda one: one[1])
    last_step = values[-1][0]
    last = float(np.median([value for _, value, _ in values[-3:]]))
    if 2 * best_step > last_step or last <= max(WORSE * best, best + RISE):
        return []
    measured = (
        f"dev {metric.replace('_', ' ')} {best:.3g} at step {best_step}, {last:.3g} at the end, step {last_step}; the"
        " run keeps the weights of the best"
    )
    return [finding("dev_got_worse", measured, where=Where("the training log", best_step))]
