"""Steps to events: numbers are read one step late, skipped steps are counted, and divergence ends the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import DivergenceError
from unrolled.training.checkpoints import Progress
from unrolled.training.events import Event, StepSkipped, StepTaken
from unrolled.training.objective import MicroBatch
from unrolled.training.stepper import Launched

__all__ = ["Reporter"]

_MOST_SKIPPED = 5


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A step whose numbers were not read yet: everything of its event but these."""

    launched: Launched
    batches: Sequence[MicroBatch]
    event: StepTaken


class Reporter:
    """Emits what steps came to.

    Parameters
    ----------
    emit : callable
        Takes each event.
    progress : Progress
        Its counts of skipped steps are kept here.
    lines : int array, optional
        Line of the training file of each row; without it rows stand for themselves.
    """

    def __init__(self, emit: Callable[[Event], None], progress: Progress, lines: NDArray[Any] | None) -> None:
        self._emit = emit
        self._progress = progress
        self._lines = lines
        self._pending: _Pending | None = None
        self._named: set[int] = set()

    def add(self, launched: Launched, batches: Sequence[MicroBatch], event: StepTaken) -> None:
        """Take in a launched step, then report the one before it.

        Raises
        ------
        DivergenceError
            See `flush`.
        """
        before, self._pending = self._pending, _Pending(launched, batches, event)
        if before is not None:
            self._report(before)

    def flush(self) -> None:
        """Report the last step that was taken in.

        Raises
        ------
        DivergenceError
            If gradients were not finite in several steps in a row.
        """
        before, self._pending = self._pending, None
        if before is not None:
            self._report(before)

    def drop(self) -> None:
        """Forget the step that was taken in last: training ends before its numbers are read."""
        self._pending = None

    def skip_without_label(self, step: int, batches: Sequence[MicroBatch]) -> None:
        """Report a step that has nothing to learn from; its lines are named once."""
        self.flush()
        self._progress.num_skipped += 1
        lines = [line for line in self._lines_of(batches) if line not in self._named]
        self._named.update(lines)
        if lines:
            self._emit(self._skipped(step, "no label in the whole step", lines, None))

    def _report(self, pending: _Pending) -> None:
        numbers = pending.launched.read()
        event = dataclasses.replace(pending.event, loss=numbers.loss, gradient_norm=numbers.gradient_norm)
        if numbers.non_finite is None:
            self._progress.skipped_in_a_row = 0
            self._emit(event)
            return
        self._progress.num_skipped += 1
        self._progress.skipped_in_a_row += 1
        lines = self._lines_of(pending.batches)
        self._emit(self._skipped(event.step, "gradient is not finite", lines, numbers.non_finite))
        if self._progress.skipped_in_a_row >= _MOST_SKIPPED:
            raise DivergenceError(
                f"gradients not finite in {_MOST_SKIPPED} steps in a row, first in {numbers.non_finite}; no step was"
                " taken with them: lower the learning rate, or look at the data lines of the skipped steps",
                step=event.step,
            )

    def _skipped(self, step: int, reason: str, lines: Sequence[int], parameter: str | None) -> StepSkipped:
        return StepSkipped(
            step,
            reason=reason,
            lines=tuple(lines),
            parameter=parameter,
            in_a_row=self._progress.skipped_in_a_row,
            total=self._progress.num_skipped,
        )

    def _lines_of(self, batches: Sequence[MicroBatch]) -> list[int]:
        rows = np.concatenate([batch.rows for batch in batches])
        found: list[int] = sorted((rows if self._lines is None else self._lines[rows]).tolist())
        return found
