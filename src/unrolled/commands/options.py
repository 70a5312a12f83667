"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from unrolled.errors import ConfigError

__all__ = ["Engine", "EngineOption", "SourceOption", "TargetOption", "data_file", "given_file"]


class Engine(StrEnum):
    """What computes."""

    AUTO = "auto"
    TORCH = "torch"
    BFLOAT16 = "bfloat16"
    NUMPY = "numpy"


EngineOption = Annotated[
    Engine, typer.Option("--engine", help="What computes; auto: PyTorch, else NumPy; bfloat16: PyTorch, less exact.")
]

SourceOption = Annotated[
    Path | None, typer.Option("--source", metavar="FILE", help="Sources, one a line, in place of a file of pairs.")
]
TargetOption = Annotated[
    Path | None, typer.Option("--target", metavar="FILE", help="Their targets, line by line; with --source.")
]


def data_file(
    pairs: str | Path | None, source: Path | None, target: Path | None, *, prefix: str = "--"
) -> str | Path | tuple[Path, Path] | None:
    """The file of pairs, or the two parallel ones, that a person named; none if none was.

    Raises
    ------
    ConfigError
        If one of two parallel files is missing, or both ways are used at once.
    """
    if source is None and target is None:
        return pairs
    if source is None or target is None:
        given, missing = ("source", "target") if target is None else ("target", "source")
        raise ConfigError(f"{prefix}{given} needs {prefix}{missing}: two files whose lines are pairs")
    if pairs is not None:
        raise ConfigError(f"give pairs in one file or in {prefix}source and {prefix}target, not both; got {pairs} too")
    return source, target


def given_file(pairs: Path | None, source: Path | None, target: Path | None) -> str | Path | tuple[Path, Path]:
    """The same, where a file must be named."""
    file = data_file(pairs, source, target)
    if file is None:
        raise ConfigError("expected a file of pairs, or two parallel files as --source and --target")
    return file
