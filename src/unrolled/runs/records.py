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
    """A data file, or two parallel ones, as they were when training started."""

    path: str
    """Absolute path, perhaps of a folder of texts, or the name of a task, whose examples follow from the settings."""
    sha256: str
    """Of the bytes on the disk; a compressed file is not unpacked for it. Of two parallel files both, after a space."""
    num_pairs: int
    """Pairs taken from it, or symbols of text."""
    target_path: str | None = None
    """Of two parallel files the second."""

    @property
    def files(self) -> str | tuple[str, str]:
        """The file, or the two parallel ones."""
        return self.path if self.target_path is None else (self.path, self.target_path)

    def check(self, path: str | Path | tuple[str | Path, str | Path] | None = None) -> None:
        """Check that the file, or another one given in its place, is what it was; a task always is, a folder exists.

        Raises
        ------
        DataError
            If it is gone or has other bytes.
        """
        if self.path.startswith("task:") and path in (None, self.path):
            return
        given = self.files if path is None else path
        files = given if isinstance(given, tuple) else (given,)
        expected = self.sha256.split(" ")
        if len(files) != len(expected):
            raise DataError(
                f"the run was trained on {len(expected)} file{'s' * (len(expected) > 1)}, got {len(files)}",
                file=files[0],
            )
        for file, sha256 in zip(files, expected, strict=True):
            _check_file(Path(file), sha256)


def _check_file(path: Path, sha256: str) -> None:
    if not path.exists():
        raise DataError("the run was trained on this file, which is gone; put it back to resume", file=path)
    if path.is_file():
        _compare(digest_file(path), sha256, path)


def _compare(found: str, sha256: str, path: str | Path) -> None:
    if found != sha256:
        raise DataError(
            f"changed since the run started: expected SHA-256 {sha256[:12]}…, got {found[:12]}…; restore it to"
            " resume, or start a new run from these weights",
            file=path,
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

    def compare(self, other: DataDigest) -> None:
        """Check that what was read now is what was read then.

        Raises
        ------
        DataError
            If a file has other bytes, or a folder other files.
        """
        for ours, theirs in ((self.train, other.train), (self.dev, other.dev)):
            if ours is not None and theirs is not None:
                _compare(theirs.sha256, ours.sha256, theirs.path)

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
