"""Programs that do the same work in turns, so that what else the machine does falls on all of them alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / "build" / "peers"


class Worker:
    """A running program that answers a number for every line that it is sent."""

    def __init__(self, command: Sequence[object], environment: Mapping[str, str]) -> None:
        self._child = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def measure(self) -> float:
        """The number of one repetition."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        """The next answer; libraries may print other lines."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            word, _, number = line.partition(" ")
            if word == "answer":
                return float(number)
        raise SystemExit(f"{self._child.args}: ended early with {self._child.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


class Unit(NamedTuple):
    """What a number counts, and which way is better."""

    name: str
    is_less_better: bool = False

    def times_better(self, ours: float, theirs: float) -> float:
        """Above 1 where ours is better."""
        return theirs / ours if self.is_less_better else ours / theirs


@dataclass(frozen=True)
class Program:
    """One side of a comparison.

    Parameters
    ----------
    name : str
    script : str
        A file of `workers`.
    arguments : tuple
        `{batch}` stands for one of `batches`.
    environment : str
        Of `PEERS`; this project's own where it is empty.
    is_plain : bool
        PyTorch alone: run in this project's environment, without the settings of its commands, as others are.
    batches : tuple of int
        Batch sizes, of which the best is taken.
    """

    name: str
    script: str
    arguments: tuple[object, ...] = ()
    environment: str = ""
    batches: tuple[int, ...] = ()
    is_plain: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its environment is there."""
        return not self.environment or (PEERS / self.environment / ".installed").exists()

    def start(self, batch: int | None) -> Worker:
        """A worker of it."""
        arguments = (batch if word == "{batch}" else word for word in self.arguments)
        python = PEERS / self.environment / "bin" / "python" if self.environment else sys.executable
        command = [python, HERE / "workers" / self.script, *arguments]
        return Worker(command, settings_of_a_peer() if self.environment or self.is_plain else os.environ)

    def best_batch(self, unit: Unit) -> int | None:
        """The batch size with the best number, one repetition each."""
        if len(self.batches) < 2:
            return next(iter(self.batches), None)
        found = {}
        for batch in self.batches:
            with self.start(batch) as worker:
                found[batch] = worker.measure()
        return (min if unit.is_less_better else max)(found, key=lambda batch: found[batch])


@dataclass(frozen=True)
class Row:
    """A comparison: the work, what is counted, the programs with ours first; `rounds` where fewer are enough."""

    work: str
    unit: Unit
    programs: tuple[Program, ...]
    rounds: int | None = None


def settings_of_a_peer() -> dict[str, str]:
    """As many threads as ours, and nothing else that our commands set for themselves."""
    own = {"GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "PYDANTIC_DISABLE_PLUGINS"}
    return {name: value for name, value in os.environ.items() if name not in own}


def compare(row: Row, rounds: int) -> list[str]:
    """Lines of a table: the median of each installed program, and how many times ours is better."""
    programs = [program for program in row.programs if program.is_installed]
    batches = [program.best_batch(row.unit) for program in programs]
    workers: list[Worker] = []
    try:
        for program, batch in zip(programs, batches, strict=True):
            workers.append(program.start(batch))
        numbers = [[worker.measure() for worker in workers] for _ in range(min(rounds, row.rounds or rounds))]
    finally:
        for worker in workers:
            worker.__exit__()
    columns = list(zip(*numbers, strict=True))
    lines = []
    for place, (program, batch, column) in enumerate(zip(programs, batches, columns, strict=True)):
        name = program.name if batch is None else f"{program.name}, batch {batch}"
        compared = ratios(row.unit, columns[0], column) if place else ""
        lines.append(f"| {row.work} | {name} | {shown(statistics.median(column))} {row.unit.name} | {compared} |")
    return lines


def ratios(unit: Unit, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """How many times ours is better: of the medians, and the range over the rounds."""
    turns = [unit.times_better(*pair) for pair in zip(ours, theirs, strict=True)]
    whole = unit.times_better(statistics.median(ours), statistics.median(theirs))
    return f"{whole:.2f} ({min(turns):.2f}–{max(turns):.2f})"


def shown(number: float) -> str:
    """Three digits at least."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
