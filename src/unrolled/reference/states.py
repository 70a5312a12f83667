"""Values that decoding carries along: nested named tuples of arrays, batch axis first, never changed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from unrolled.reference.layer import BoolArray, FloatArray, IntArray

__all__ = ["CellState", "HiddenState", "LSTMState", "added", "chosen", "mapped", "selected"]

Tree = TypeVar("Tree")


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """`function` of the arrays that stand at the same place in nested tuples of one form; None stays None."""
    image: Tree = _mapped(function, tree, *others)
    return image


def _mapped(function: Callable[..., Any], *trees: Any) -> Any:
    first = trees[0]
    if first is None:
        return None
    if not isinstance(first, tuple):
        return function(*trees)
    leaves = [_mapped(function, *parts) for parts in zip(*trees, strict=True)]
    return type(first)(*leaves) if hasattr(first, "_fields") else tuple(leaves)


def selected(tree: Tree, rows: IntArray) -> Tree:
    """Copy with these rows of the first axis; repeats are allowed."""
    return mapped(lambda leaf: np.take(leaf, rows, axis=0), tree)


def chosen(rows: BoolArray, yes: Tree, no: Tree) -> Tree:
    """Row by row one or the other; rows (B, 1), arrays (B, H)."""
    return mapped(lambda a, b: np.where(rows, a, b), yes, no)


def added(first: Tree, second: Tree) -> Tree:
    """Sum, array by array."""
    return mapped(np.add, first, second)


class LSTMState(NamedTuple):
    """State of one LSTM layer, (B, H) each."""

    h: FloatArray
    c: FloatArray

    def select(self, rows: IntArray) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same state: there is no graph to cut."""
        return self


class HiddenState(NamedTuple):
    """State of one layer of any other cell, (B, H)."""

    h: FloatArray

    def select(self, rows: IntArray) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same state: there is no graph to cut."""
        return self


CellState = LSTMState | HiddenState
