"""The keys and values of a Transformer's past: values that grow at the end without being copied each time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Cache", "KeysValues"]


class KeysValues(NamedTuple):
    """Keys and values of every head, (B, N, P, K) each."""

    keys: Tensor
    values: Tensor


class Room:
    """Storage that caches share which grew from one another. What a cache sees is never written again."""

    def __init__(self, past: KeysValues, num_more: int) -> None:
        self.used = past.keys.shape[2]
        capacity = 2 * (self.used + num_more)
        self.tensors = [x.new_empty(*x.shape[:2], capacity, x.shape[3]) for x in past]
        for tensor, x in zip(self.tensors, past, strict=True):
            tensor[:, :, : self.used] = x

    def takes(self, end: int, later: KeysValues) -> bool:
        """Whether these may be written at `end`: nobody wrote there, and they fit in length, type and mode."""
        tensor, n = self.tensors[0], later.keys.shape[2]
        return (
            end == self.used
            and end + n <= tensor.shape[2]
            and tensor.dtype == later.keys.dtype
            and tensor.is_inference() == torch.is_inference_mode_enabled()
        )

    def append(self, later: KeysValues) -> int:
        """Write behind everything; returns the new end."""
        begin, self.used = self.used, self.used + later.keys.shape[2]
        for tensor, x in zip(self.tensors, later, strict=True):
            tensor.narrow(2, begin, self.used - begin).copy_(x)
        return self.used


class Cache(KeysValues):
    """Keys and values of a layer's past; an immutable value.

    Without a graph to keep, a cache that grows again and again is a view of a `Room` twice as large, so that a step
    writes its own positions alone: T steps copy O(T) positions and not O(T²). Two caches that grow from the same one
    part ways when the second one grows: it moves to a room of its own. A cache of selected rows grows by copying at
    first; where rows are selected at every step, as in a beam, there is nothing to share.
    """

    room: Room | None = None
    end: int = 0  # in the room
    has_grown: bool = False

    def grown(self, keys: Tensor, values: Tensor) -> Cache:
        """The past with n more positions; this one stays as it is."""
        past, later = self.keys.shape[2], KeysValues(keys, values)
        if past == 0:
            return Cache(keys, values)
        if torch.is_grad_enabled() or not self.has_grown:
            copy = Cache(torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2))
            copy.has_grown = True
            return copy
        room = self.room
        if room is None or not room.takes(self.end, later):
            room = Room(self, keys.shape[2])
        return _view(room, past + keys.shape[2], room.append(later))

    def last(self, num_positions: int) -> Cache:
        """Its end alone."""
        if num_positions >= self.keys.shape[2]:
            return self
        if self.room is not None:
            return _view(self.room, num_positions, self.end)
        begin = self.keys.shape[2] - num_positions
        end = Cache(self.keys[:, :, begin:], self.values[:, :, begin:])
        end.has_grown = self.has_grown
        return end

    def at(self, positions: Tensor) -> Cache:
        """Other positions (B, P') row by row."""
        index = positions[:, None, :, None]
        return Cache(*(x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in self))


def _view(room: Room, num_positions: int, end: int) -> Cache:
    cache = Cache(*(tensor.narrow(2, end - num_positions, num_positions) for tensor in room.tensors))
    cache.room, cache.end, cache.has_grown = room, end, True
    return cache
