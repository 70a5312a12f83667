"""Listeners that write: the run's log of events, and TensorBoard's where it is installed."""

from __future__ import annotations

import dataclasses
import json
import math
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from unrolled.runs import write_atomic
from unrolled.training.events import Evaluated, Event, StepTaken, TrainingStarted

__all__ = ["JsonLinesLog", "TensorBoard"]


class JsonLinesLog:
    """Writes each event as a line of JSON, `{"event": "StepTaken", "step": 1, …}`; a context that closes the file.

    Lines reach the operating system at once, so that a killed process loses none. When a run is resumed, what was
    logged after the state that it goes on from is dropped first: every step stands there once.

    Parameters
    ----------
    path : Path
        Appended to, or made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __call__(self, event: Event) -> None:
        """Write an event."""
        if isinstance(event, TrainingStarted):
            self._drop_after(event.step)
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8", buffering=1)  # line by line
        values = {name: _finite(value) for name, value in dataclasses.asdict(event).items()}
        self._file.write(json.dumps({"event": type(event).__name__, **values}, ensure_ascii=False) + "\n")

    def _drop_after(self, step: int) -> None:
        """Keep the lines up to a step; a last line that was cut by a kill goes too."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path.exists():
            lines = self._path.read_bytes().splitlines(keepends=True)
            write_atomic(self._path, b"".join(line for line in lines if _is_kept(line, step)))


def _is_kept(line: bytes, step: int) -> bool:
    try:
        event = json.loads(line)
    except ValueError:
        return False
    is_after = event["step"] >= step if event["event"] in ("TrainingEnded", "TrainingHalted") else event["step"] > step
    return line.endswith(b"\n") and not is_after


def _finite(value: Any) -> Any:
    """JSON has no infinities; they are logged as none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoard:
    """Writes loss, learning rate, gradient norm and dev values for TensorBoard.

    Parameters
    ----------
    folder : Path
        Where its files go.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    @staticmethod
    def is_available() -> bool:
        """Whether tensorboard is installed."""
        return find_spec("tensorboard") is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def __call__(self, event: Event) -> None:
        """Write the numbers of an event."""
        for name, value in _scalars(event).items():
            self._writer.add_scalar(name, value, event.step)


def _scalars(event: Event) -> dict[str, float]:
    if isinstance(event, StepTaken):
        return {
            "train/loss": event.loss,
            "train/learning_rate": event.learning_rate,
            "train/gradient_norm": event.gradient_norm,
        }
    if isinstance(event, Evaluated) and event.weights == "current":
        values = {"dev/loss": event.loss, f"dev/{event.metric}": event.value}
        return {name: value for name, value in values.items() if value is not None}
    return {}
