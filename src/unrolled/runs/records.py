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
    """Absolute path."""
    sha256: str
    """Of the bytes on the disk; a compressed file is not unpacked for it."""

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """Digest a file now."""
        return cls(path=str(Path(path).resolve()), sha256=digest_file(Path(path)))

    def check(self) -> None:
        """Raise `DataError` if the file is gone or is not what it was."""
        if not Path(self.path).is_file():
            raise DataError("the run was trained on this file, which is gone; put it back to resume", file=self.path)
        found = digest_file(Path(self.path))
        if found != self.sha256:
            raise DataError(
                f"changed since the run started (SHA-256 {self.sha256[:12]}…, now {found[:12]}…); restore it to resume,"
                " or start a new run from these weights (--from)",
                file=self.path,
            )


@dataclasses.dataclass(frozen=True)
class DataDigest:
    """Which data a run was trained and chosen on."""

    train: FileDigest
    dev: FileDigest | None
    """None where the dev part was held out of the training file."""
    counts: Mapping[str, int]
    """Pairs of each part, by name."""
    dev_lines: tuple[int, ...] = ()
    """Lines of the training file that were held out, counted from 1."""

    def check(self) -> None:
        """Raise `DataError` naming the first file that changed since the run started."""
        self.train.check()
        if self.dev is not None:
            self.dev.check()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `dataclasses.asdict` gave."""
        dev = values["dev"]
        return cls(
            train=FileDigest(**values["train"]),
            dev=None if dev is None else FileDigest(**dev),
            counts=values["counts"],
            dev_lines=tuple(values["dev_lines"]),
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
    matrix_mode: str
    """How float32 matrix products were computed."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `dataclasses.asdict` gave."""
        return cls(**values)
