"""The memory of a beam search: who was extended by what, at each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unrolled.next_symbol import FloatArray, IntArray
from unrolled.text.vocabulary import PAD

__all__ = ["Trellis"]


class _Step(NamedTuple):
    slot: IntArray  # (B,) place of each source among those still searched
    parent: IntArray  # (A, k) row, among its source's rows before this step, that each row extends
    symbol: IntArray  # (A, k) what it is extended by
    attention: FloatArray | None  # (A, rows before this step, S) with which this step was predicted


class Trellis:
    """Back-pointers, so that no step copies what earlier steps wrote.

    Axes: B sources, A sources still searched, k rows a source, N traced items.
    """

    def __init__(self, num_sources: int) -> None:
        self._num_sources = num_sources
        self._steps: list[_Step] = []

    def record(
        self, active: IntArray, parent: IntArray, symbol: IntArray, *, attention: FloatArray | None = None
    ) -> None:
        """Add one step of the sources `active`."""
        slot = np.full(self._num_sources, -1, dtype=np.int64)
        slot[active] = np.arange(len(active))
        if attention is not None:
            attention = attention.reshape(len(active), -1, attention.shape[-1])  # (R, S) -> (A, rows, S)
        self._steps.append(_Step(slot, parent, symbol, attention))

    def trace(self, source: IntArray, length: IntArray, row: IntArray) -> tuple[IntArray, IntArray]:
        """Walk back from row `row` of each item as it was after `length` symbols; all arguments `(N,)`.

        Returns
        -------
        symbols : (N, longest) array
            PAD after an item's length.
        rows : (N, longest + 1) array
            The row that the item was in after 0, 1, 2, … symbols.
        """
        longest = int(length.max(initial=0))
        symbols = np.full((len(source), longest), PAD, dtype=np.int64)
        rows = np.zeros((len(source), longest + 1), dtype=np.int64)
        rows[np.arange(len(source)), length] = row
        for t in range(longest, 0, -1):
            items = np.flatnonzero(length >= t)
            step = self._steps[t - 1]
            place = step.slot[source[items]], rows[items, t]
            symbols[items, t - 1] = step.symbol[place]
            rows[items, t - 1] = step.parent[place]
        return symbols, rows

    def attention(self, source: int, rows: IntArray) -> FloatArray:
        """Attention `(len(rows), S)` of one item with which the symbols after 0, 1, 2, … symbols were predicted."""
        weights = []
        for step, row in zip(self._steps, rows, strict=False):
            assert step.attention is not None
            weights.append(step.attention[step.slot[source], row])
        width = min(map(len, weights))  # an engine may trim padding as sources leave
        return np.stack([row[:width] for row in weights])
