"""Everything that `unrolled` raises on purpose.

::

    UnrolledError                    exit code 70
    ├── ConfigError      ValueError           2   settings that make no sense
    ├── DataError        ValueError           2   a file or a line that cannot be used
    ├── VocabularyError  ValueError           2   symbols that do not fit the model
    ├── ShapeError       ValueError           2   arrays whose sizes do not fit
    ├── MissingExtraError ImportError         2   a library of an optional extra is absent
    ├── CheckpointError  ValueError           3   a run folder that is damaged, foreign or too new
    └── DivergenceError  ArithmeticError      4   training that cannot go on

The first line of every message stands alone: what, where, expected, got, what to do. The commands print that
line and leave with the error's `exit_code`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DivergenceError",
    "MissingExtraError",
    "ShapeError",
    "UnrolledError",
    "VocabularyError",
]


class UnrolledError(Exception):
    """Root of the tree; catching it catches everything that the package raises on purpose."""

    exit_code = 70


class ConfigError(UnrolledError, ValueError):
    """Settings that are unknown, of the wrong type, or senseless together."""

    exit_code = 2


class DataError(UnrolledError, ValueError):
    """A data file, or one line of it, that cannot be used.

    Parameters
    ----------
    message : str
        What is wrong and what to do about it.
    file : path, optional
        The file; put before the message.
    line : int, optional
        The line, counted from 1; put before the message.
    """

    exit_code = 2

    def __init__(self, message: str, *, file: str | Path | None = None, line: int | None = None) -> None:
        self.file = None if file is None else str(file)
        self.line = line
        where = "" if file is None else f"{file}: " if line is None else f"{file}, line {line}: "
        super().__init__(where + message)


class VocabularyError(UnrolledError, ValueError):
    """Symbols that a model does not know, or vocabularies that do not fit each other."""

    exit_code = 2


class ShapeError(UnrolledError, ValueError):
    """Arrays or layers whose sizes do not fit each other."""

    exit_code = 2


class MissingExtraError(UnrolledError, ImportError):
    """A library of an optional extra is not installed.

    Parameters
    ----------
    library : str
        The import that failed, e.g. `torch`.
    extra : str
        The extra that brings it, e.g. `train`.
    purpose : str
        What it is needed for.
    """

    exit_code = 2

    def __init__(self, library: str, *, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed; run: pip install 'unrolled[{extra}]'")


class CheckpointError(UnrolledError, ValueError):
    """A run folder that is incomplete, damaged, foreign, or written by a newer version."""

    exit_code = 3


class DivergenceError(UnrolledError, ArithmeticError):
    """Training that cannot go on: non-finite values in several steps in a row, or no hope of learning anything.

    Parameters
    ----------
    message : str
        What happened and what to do.
    step : int, optional
        The optimiser step, counted from 1.
    fault : str
        The name that `unrolled.diagnosis` has for it.
    """

    exit_code = 4

    def __init__(self, message: str, *, step: int | None = None, fault: str = "non_finite") -> None:
        self.step = step
        self.fault = fault
        super().__init__(message if step is None else f"step {step}: {message}")
