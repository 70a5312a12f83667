"""What the columns of a line hold, in data files and in prediction input, and how features are written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from unrolled.config import Column, Data
from unrolled.errors import DataError
from unrolled.text.wording import counted

__all__ = ["Shape", "parse_input", "shapes_of", "split_features"]


class Shape(NamedTuple):
    """Where the columns of a file are."""

    columns: tuple[Column, ...]
    source: int
    target: int | None
    features: int | None

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Shape:
        """Find the places of the named columns."""

        def place(name: Column) -> int | None:
            return columns.index(name) if name in columns else None

        return cls(tuple(columns), columns.index("source"), place("target"), place("features"))

    def __str__(self) -> str:
        return f"{counted(len(self.columns), 'column')} ({', '.join(self.columns)})"


def shapes_of(data: Data, *, need_target: bool) -> list[Shape]:
    """Accepted shapes, best first: as declared, without the target, only what the model reads."""
    shapes = [Shape.of(data.columns)]
    if not need_target:
        shapes.append(Shape.of([column for column in data.columns if column != "target"]))
        shapes.append(Shape.of([column for column in data.columns if column in ("source", "features")]))
    return shapes


def split_features(text: str, *, file: str | None = None, line: int | None = None) -> tuple[str, ...]:
    """Split a features field at `;` outside parentheses: `V;SBJV;ARG(NOM;3)` has three.

    White space around a feature and empty features are dropped.

    Raises
    ------
    DataError
        If parentheses do not match.
    """
    if "(" not in text and ")" not in text:
        parts = text.split(";")
    else:
        depths = np.cumsum([(symbol == "(") - (symbol == ")") for symbol in text])
        if depths.min() < 0 or depths[-1]:
            raise DataError(f"parentheses do not match in features {text!r}", file=file, line=line)
        cuts = [place for place, symbol in enumerate(text) if symbol == ";" and depths[place] == 0]
        parts = [text[before + 1 : after] for before, after in pairwise([-1, *cuts, len(text)])]
    return tuple(part.strip() for part in parts if part.strip())


def parse_input(
    line: str, data: Data, *, file: str | None = None, number: int | None = None
) -> tuple[str, tuple[str, ...]]:
    """Take the source and the features from one line of prediction input.

    The line is split at tabs, whether the training file was TSV or CSV: columns as declared, or without the target, or
    only what the model reads. After two parallel files a line is one source, tabs included. A blank line is an empty
    source.

    Raises
    ------
    DataError
        If the line has none of these numbers of columns, naming `file` and line `number`.
    """
    if not line.strip():
        return line.replace("\t", ""), ()
    if data.format == "parallel":
        return line, ()
    fields = line.split("\t")
    shapes = shapes_of(data, need_target=False)
    shape = next((shape for shape in shapes if len(shape.columns) == len(fields)), None)
    if shape is None:
        raise DataError(f"expected {shapes[-1]}, got {len(fields)}", file=file, line=number)
    features = () if shape.features is None else split_features(fields[shape.features], file=file, line=number)
    return fields[shape.source], features
