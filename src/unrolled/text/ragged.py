"""Rows of different lengths in two flat arrays, and rows padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged", "pad_rows"]

IntArray = NDArray[Any]


@dataclass(frozen=True)
class Ragged:
    """Rows of ids: `values[offsets[i] : offsets[i + 1]]` is row i.

    A million rows are two arrays, not a million objects.

    Parameters
    ----------
    values : int32 array (total,)
    offsets : int64 array (N + 1,)
    """

    values: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def from_lengths(cls, values: IntArray, lengths: IntArray) -> Self:
        """Cut a flat array into rows of these lengths."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(values.astype(np.int32, copy=False), offsets)

    @classmethod
    def from_rows(cls, rows: Sequence[IntArray | Sequence[int]]) -> Self:
        """Pack arrays or lists."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        values = np.concatenate([np.empty(0, dtype=np.int32), *arrays])
        return cls.from_lengths(values, np.array([len(row) for row in arrays], dtype=np.int64))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Of each row, (N,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: IntArray) -> Ragged:
        """These rows, in their order; repeats are allowed."""
        result = self.from_lengths(np.empty(0, dtype=np.int32), self.lengths[rows])
        shift = np.repeat(self.offsets[rows] - result.offsets[:-1], result.lengths)
        return Ragged(self.values[shift + np.arange(shift.size)], result.offsets)

    def pad(self, rows: IntArray, *, fill: int = 0) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Rows side by side, filled on the right: ids (B, T) and a mask (B, T), True for real symbols."""
        lengths = self.lengths[rows]
        steps = np.arange(lengths.max(initial=0))
        mask = steps < lengths[:, None]  # (B, T)
        padded = np.full(mask.shape, fill, dtype=np.int64)
        padded[mask] = self.values[(self.offsets[rows][:, None] + steps)[mask]]
        return padded, mask

    def rows_with(self, *wanted: int) -> list[int]:
        """Rows that hold any of these ids."""
        places = np.flatnonzero(np.isin(self.values, wanted))
        return [int(row) for row in np.unique(np.searchsorted(self.offsets, places, side="right") - 1)]

    def append(self, other: Ragged) -> Ragged:
        """Join row i of `other` to the end of row i."""
        joined = np.empty(self.values.size + other.values.size, dtype=np.int32)
        result = self.from_lengths(joined, self.lengths + other.lengths)
        for part, starts in ((self, result.offsets[:-1]), (other, result.offsets[:-1] + self.lengths)):
            shift = np.repeat(starts - part.offsets[:-1], part.lengths)
            joined[shift + np.arange(part.values.size)] = part.values
        return result


def pad_rows(rows: Sequence[IntArray], *, fill: int = 0) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad arrays of ids on the right: ids (B, T) int64 and a mask (B, T), True for real symbols."""
    return Ragged.from_rows(rows).pad(np.arange(len(rows)), fill=fill)
