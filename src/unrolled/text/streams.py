"""Batches of running text: contiguous streams for models that carry a state, windows for those that do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.text.token_store import Tokens
from unrolled.text.vocabulary import BOS, PAD

__all__ = ["Streams", "TextBatch", "Windows", "text_batch"]

_FORGET_PROBABILITY = 0.03  # that a stream returns to the start of the state before a chunk
IntArray = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TextBatch:
    """Equally long pieces of text side by side.

    Parameters
    ----------
    inputs : int64 array (B, T)
        What the model reads.
    labels : int64 array (B, T)
        The symbol after each; `PAD` where that is `BOS`, since nothing tells that a document begins.
    reset : bool array (B, T), optional
        Symbols before which the state returns to its start: the `BOS` of a document, and what `Streams` draws; none
        where there is no such symbol.
    rows : int64 array (B,)
        Where each piece begins in the text.
    is_continued : bool
        Whether each row goes on where the same row of the batch before has ended.
    """

    inputs: NDArray[np.int64]
    labels: NDArray[np.int64]
    reset: NDArray[np.bool_] | None
    rows: NDArray[np.int64]
    is_continued: bool = False

    @property
    def num_labels(self) -> int:
        """Labels that count."""
        return int((self.labels != PAD).sum())

    @property
    def num_tokens(self) -> int:
        """Symbols that are read."""
        return self.inputs.size

    def part(self, rank: int, size: int) -> Self:
        """The rows of one of several processes, every `size`-th from `rank` on; there may be none."""
        mine = slice(rank, None, size)
        reset = None if self.reset is None else self.reset[mine]
        return replace(self, inputs=self.inputs[mine], labels=self.labels[mine], reset=reset, rows=self.rows[mine])


def text_batch(
    tokens: Tokens,
    starts: IntArray,
    length: int,
    *,
    is_continued: bool = False,
    forgets: NDArray[np.bool_] | None = None,
) -> TextBatch:
    """Cut `length` symbols from each start, and the one after them for the last label.

    `forgets` (B,) is True for rows that return to the start of the state although the text goes on.
    """
    pieces = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)  # (B, T + 1)
    inputs, labels = pieces[:, :-1], pieces[:, 1:]
    begins = inputs == BOS
    if forgets is not None:
        begins[:, 0] |= forgets
    return TextBatch(
        inputs=inputs,
        labels=np.where(labels == BOS, PAD, labels),
        reset=begins if begins.any() else None,
        rows=starts.astype(np.int64),
        is_continued=is_continued,
    )


class Streams:
    """A text cut into B equal streams, which are read side by side, chunk after chunk.

    Stream b is the b-th of B equal parts of the text, and chunk i its symbols i T to (i + 1) T; the last chunk may be
    shorter, and fewer than B symbols at the end of the text are left out. Before three chunks of a stream in a hundred
    the state returns to its start, drawn by seed and epoch: a state that is always carried ends where no text gets
    to from the start, where whoever uses the model begins (the remedy is that of the code of Melis et al. 2018).

    Parameters
    ----------
    tokens : id array (N,)
        At least two.
    batch_size : int
        B; fewer where a text has not that many chunks.
    length : int
        T, the symbols of a chunk.
    seed : int
    """

    def __init__(self, tokens: Tokens, *, batch_size: int, length: int, seed: int) -> None:
        self._tokens = tokens
        self._seed = seed
        num_labels = len(tokens) - 1
        batch_size = max(1, min(batch_size, num_labels // length))
        self._stream = num_labels // batch_size
        self._starts = self._stream * np.arange(batch_size)
        self._length = length

    def __len__(self) -> int:
        return -(-self._stream // self._length)

    @property
    def num_labels(self) -> int:
        """Symbols that are predicted in an epoch."""
        return self._stream * len(self._starts)

    def batch(self, epoch: int, place: int) -> TextBatch:
        """Chunk `place` of every stream: the same symbols in each epoch, with returns of the state of its own."""
        first = place * self._length
        length = min(self._length, self._stream - first)
        if not place:
            return text_batch(self._tokens, self._starts, length)
        draws = np.random.default_rng((self._seed, epoch, place)).random(len(self._starts))
        forgets = draws < _FORGET_PROBABILITY
        return text_batch(self._tokens, self._starts + first, length, is_continued=True, forgets=forgets)


class Windows:
    """Windows of T symbols that do not overlap, shuffled anew in each epoch, and so that their edges move.

    Parameters
    ----------
    tokens : id array (N,)
        At least two.
    batch_size : int
        Windows of a batch.
    length : int
        T; a shorter text is one window.
    seed : int
    """

    def __init__(self, tokens: Tokens, *, batch_size: int, length: int, seed: int) -> None:
        self._tokens = tokens
        self._batch_size = batch_size
        self._length = min(length, len(tokens) - 1)
        self._count = (len(tokens) - 1) // self._length
        self._seed = seed
        self._epoch, self._starts = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return -(-self._count // self._batch_size)

    @property
    def num_labels(self) -> int:
        """Symbols that are predicted in an epoch."""
        return self._count * self._length

    def batch(self, epoch: int, place: int) -> TextBatch:
        """Batch `place` of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._plan(epoch)
        starts = self._starts[place * self._batch_size : (place + 1) * self._batch_size]
        return text_batch(self._tokens, starts, self._length)

    def _plan(self, epoch: int) -> NDArray[np.int64]:
        generator = np.random.default_rng((self._seed, epoch))
        offset = generator.integers(self._length)
        last = len(self._tokens) - 1 - self._length  # a window that the offset has pushed over the end is moved back
        starts = np.minimum(offset + self._length * np.arange(self._count), last)
        return generator.permutation(starts)
