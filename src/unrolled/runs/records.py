"""What a run remembers of its data and of the machine, as plain values that survive JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from unrolled.errors import DataError
from unrolled.runs.atomic import digest_file

__all__ = ["DataDigest", "Environment", "FileDigest"]


@dataclasses.dataclass(frozen=True)
class FileDigest:
    """A data file as it was when training started."""

    path: str
    """Absolute path, or the name of a task, whose examples follow from the settings."""
    sha256: str
    """Of the bytes on the disk; a compressed file is not unpacked for it."""
    num_pairs: int
    """Pairs taken from it."""

    def check(self, path: str | Path | None = None) -> None:
        """Check that the file, or another one given in its place, is what it was; a task always is.

        Raises
        ------
        DataError
            If it is gone or has other bytes.
        """
        if self.path.startswith("task:") and path in (None, self.path):
            return
        where = Path(self.path if path is None else path)
        if not where.is_file():
            raise DataError("the run was trained on this file, which is gone; put it back to resume", file=where)
        found = digest_file(where)
        if found != self.sha256:
            raise DataError(
                f"changed since the run started: expected SHA-256 {self.sha256[:12]}…, got {found[:12]}…; restore it to"
                " resume, or start a new run from these weights",
                file=where,
            )


@dataclasses.dataclass(frozen=True)
class DataDigest:
    """Which data a run was trained and chosen on."""

    train: FileDigest
    dev: FileDigest | None
    """None where the dev part, if there is one, was held out of the training file."""
    dev_lines: tuple[int, ...] = ()
    """Lines of the training file that were held out, counted from 1."""
    longest_source: int | None = None
    """Symbols of the longest source that was trained on, end symbol included; prediction points out longer ones."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `dataclasses.asdict` gave."""
        dev = None if values["dev"] is None else FileDigest(**values["dev"])
        return cls(
            train=FileDigest(**values["train"]),
            dev=dev,
            dev_lines=tuple(values["dev_lines"]),
            longest_source=values.get("longest_source"),
        )


@dataclasses.dataclass(frozen=True)
class Environment:
    """Versions and choices that decide the last bits of a result."""

    versions: Mapping[str, str]
    """Of Python and of the libraries that compute, by name."""
    machine: str
    """Processor and system."""
    device: str
    threads: int
    """Of each process."""
    processes: int
    """That trained together."""
    matrix_mode: str
    """How float32 matrix products were computed."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `dataclasses.asdict` gave."""
        return cls(**values)
