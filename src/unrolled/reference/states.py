"""Values that decoding carries along: nested named tuples of arrays, batch axis first, never changed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from unrolled.reference.layer import FloatArray, IntArray

__all__ = ["CellState", "HiddenState", "LSTMState", "added", "mapped", "selected"]

Tree = TypeVar("Tree")


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """The same (nested) tuple with `function` of each array; None stays None."""
    if tree is None:
        return None
    if not isinstance(tree, tuple):
        return function(tree)
    leaves = [mapped(leaf, function) for leaf in tree]
    return type(tree)(*leaves) if hasattr(tree, "_fields") else tuple(leaves)


def selected(tree: Tree, rows: IntArray) -> Tree:
    """Copy with these rows of the first axis; repeats are allowed."""
    copy: Tree = mapped(tree, lambda leaf: np.take(leaf, rows, axis=0))
    return copy


def added(first: Tree, second: Tree) -> Tree:
    """Sum of two nested tuples of arrays, leaf by leaf."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        leaves = [added(a, b) for a, b in zip(first, second, strict=True)]
        total: Tree = type(first)(*leaves) if hasattr(first, "_fields") else tuple(leaves)  # type: ignore[assignment]
        return total
    return first + second  # type: ignore[operator, no-any-return]


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
