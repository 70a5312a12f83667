"""What training tells its listeners. The loop prints nothing and knows none of them.

Numbers of a step arrive one step late: the loop starts the next step first, so that a GPU is never waited for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

__all__ = [
    "CheckpointSaved",
    "DataPrepared",
    "Evaluated",
    "Event",
    "Listener",
    "Planned",
    "StepSkipped",
    "StepTaken",
    "TrainingEnded",
    "TrainingHalted",
    "TrainingStarted",
    "Warned",
]

Reason = Literal["completed", "patience", "over_budget", "interrupted"]


@dataclasses.dataclass(frozen=True)
class Event:
    """Something happened at a step (counted from 1; 0 before the first)."""

    step: int
    """The optimiser step that was taken last."""


@dataclasses.dataclass(frozen=True)
class DataPrepared(Event):
    """The data files were read, before anything is trained."""

    lines: tuple[str, ...]
    """The data report, for a person."""


@dataclasses.dataclass(frozen=True)
class TrainingStarted(Event):
    """The loop is about to take its next step; `step` is above 0 where a run is resumed."""

    total_steps: int | None
    """None where a time budget is still to be measured."""
    steps_per_epoch: int
    num_parameters: int
    num_pairs: int
    device: str
    threads: int
    matrix_mode: str


@dataclasses.dataclass(frozen=True)
class Planned(Event):
    """The time budget was turned into a number of steps; again where the machine became slower or faster."""

    total_steps: int
    seconds_per_step: float
    """As measured, evaluations left out."""
    seconds_per_evaluation: float
    """Of one evaluation and save."""
    steps_before: int | None = None
    """Of the plan that this one replaces."""


@dataclasses.dataclass(frozen=True)
class StepTaken(Event):
    """One optimiser step."""

    total_steps: int | None
    epoch: int
    """Counted from 1."""
    loss: float
    """Training objective, nats a label, label smoothing and dropout included."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    num_labels: int
    num_tokens: int
    """Real symbols read and written, end symbols included."""
    seconds: float
    """Training time so far, evaluations and earlier sessions included."""
    seconds_left: float | None
    """Estimate; none while the end is unknown."""


@dataclasses.dataclass(frozen=True)
class StepSkipped(Event):
    """A step that left the weights as they were."""

    reason: str
    lines: tuple[int, ...]
    """Lines of the training file that were in the batch."""
    parameter: str | None
    """The first parameter whose gradient was not finite."""
    in_a_row: int
    total: int


@dataclasses.dataclass(frozen=True)
class Evaluated(Event):
    """The dev set was scored."""

    epoch: int
    loss: float | None
    """Nats a label without smoothing; none where there was no label to score."""
    metric: str
    value: float | None
    """Of `metric`, lower is better; what chooses the best checkpoint."""
    is_best: bool
    num_labels: int
    seconds: float
    """That the evaluation took."""
    weights: Literal["current", "average"] = "current"
    num_characters: int | None = None
    """Of the dev set, where it is running text."""


@dataclasses.dataclass(frozen=True)
class CheckpointSaved(Event):
    """The run folder holds a complete state of this step."""

    path: str
    seconds: float
    """That writing took."""


@dataclasses.dataclass(frozen=True)
class Warned(Event):
    """Something that a person should know; training goes on."""

    message: str


@dataclasses.dataclass(frozen=True)
class TrainingEnded(Event):
    """The last event of a session."""

    reason: Reason
    best_step: int | None
    best_value: float | None
    seconds: float


@dataclasses.dataclass(frozen=True)
class TrainingHalted(Event):
    """The last event of a training that cannot go on."""

    fault: str
    """The name that `unrolled.diagnosis` has for the reason."""
    message: str


Listener = Callable[[Event], None]
