"""How a session of training ended."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from unrolled.runs import resume_command
from unrolled.training.events import Reason

__all__ = ["Outcome"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a session of training came to."""

    reason: Reason
    step: int
    best_step: int | None
    """Step of the best dev evaluation; none without any."""
    best_value: float | None
    """Dev value of the weights that the run ends with, averaged ones included."""
    seconds: float
    path: Path | None
    """The run folder, if there is one."""
    signal: int | None
    """What interrupted it."""

    @property
    def exit_code(self) -> int:
        """0, or 130 after SIGINT and 143 after SIGTERM."""
        return 0 if self.signal is None else 128 + self.signal

    @property
    def resume_command(self) -> str | None:
        """What to type to go on after an interruption."""
        return None if self.signal is None or self.path is None else resume_command(self.path)
