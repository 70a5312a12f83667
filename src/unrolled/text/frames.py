"""Sequences of vectors: batches of them, and pieces of music as the keys that sound at each step."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import DataError, VocabularyError
from unrolled.text.files import read_text

__all__ = ["FrameBatch", "FrameCodec", "Pieces", "read_pieces"]

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class FrameBatch:
    """Sequences side by side, padded on the right.

    Parameters
    ----------
    inputs : float32 array (B, T, F)
        What the model reads.
    labels : array
        What stands beside each vector: ids (B, T), or numbers (B, T, O).
    counted : bool array (B, T)
        Places that have a label.
    lengths : int64 array (B,)
        Real vectors of each row.
    rows : int64 array (B,)
        Where each row stands in the data.
    """

    inputs: NDArray[np.float32]
    labels: NDArray[Any]
    counted: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def num_labels(self) -> int:
        """Places that have a label."""
        return int(self.counted.sum())

    @property
    def num_tokens(self) -> int:
        """Real vectors."""
        return int(self.lengths.sum())

    def part(self, rank: int, size: int) -> Self:
        """The rows of one of several processes, every `size`-th from `rank` on; there may be none."""
        mine = slice(rank, None, size)
        return replace(
            self,
            inputs=self.inputs[mine],
            labels=self.labels[mine],
            counted=self.counted[mine],
            lengths=self.lengths[mine],
            rows=self.rows[mine],
        )


@dataclass(frozen=True)
class FrameCodec:
    """What a model of vectors must fit: the width of an input, and the number of outputs."""

    num_inputs: int
    num_outputs: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` gives an equal one back."""
        return {"num_inputs": self.num_inputs, "num_outputs": self.num_outputs}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        VocabularyError
            If it has another form.
        """
        names = ("num_inputs", "num_outputs")
        if not isinstance(content, dict) or not all(type(content.get(name)) is int for name in names):
            raise VocabularyError(
                "codec of vectors: expected an object with the numbers 'num_inputs' and 'num_outputs'"
            )
        return cls(*(content[name] for name in names))


@dataclass(frozen=True)
class Pieces:
    """Pieces of music: piece i is `frames[offsets[i] : offsets[i + 1]]`.

    Parameters
    ----------
    file : str
    frames : bool array (total, K)
        Which of K keys sound at each step.
    offsets : int64 array (N + 1,)
    sha256 : str
        Of the file's bytes.
    """

    file: str
    frames: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    sha256: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Steps of all pieces."""
        return len(self.frames)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps of each piece, (N,)."""
        return np.diff(self.offsets)

    @property
    def side_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Steps of each piece, and nothing beside them, (N,) each."""
        return self.lengths, np.zeros_like(self.lengths)

    def batch(self, rows: NDArray[np.int64]) -> FrameBatch:
        """Pieces whose every step is to be told from the steps before it, the first from a step of silence."""
        lengths = self.lengths[rows]
        steps = np.arange(lengths.max(initial=0))
        counted = steps < lengths[:, None]  # (B, T)
        labels = np.zeros((*counted.shape, self.frames.shape[1]), np.float32)  # (B, T, K)
        labels[counted] = self.frames[(self.offsets[rows][:, None] + steps)[counted]]
        inputs = np.concatenate([np.zeros_like(labels[:, :1]), labels[:, :-1]], axis=1)
        return FrameBatch(inputs, labels, counted, lengths, rows)


def read_pieces(path: str | Path, part: Literal["train", "valid", "test"], *, num_keys: int) -> Pieces:
    """Read one part of a file of music.

    The file is JSON, plain or gzip: an object with the lists `train`, `valid` and `test`; each holds pieces, a piece is
    a list of steps, and a step the list of keys that sound, from 0 to `num_keys` - 1 (empty for silence).

    Raises
    ------
    DataError
        If the file cannot be read or has another form; the first piece and step that are wrong are named.
    """
    text = read_text(path)
    try:
        content = json.loads("\n".join(text.lines))
    except json.JSONDecodeError as error:
        raise DataError(f"is not JSON ({error.msg})", file=text.file, line=error.lineno) from None
    pieces = content.get(part) if isinstance(content, dict) else None
    if not isinstance(pieces, list) or not pieces:
        names = ", ".join(PARTS)
        raise DataError(f"expected an object whose {names} are lists of pieces, got no {part}", file=text.file)
    _check_form(pieces, part, num_keys, file=text.file)
    steps = list(chain.from_iterable(pieces))
    frames = np.zeros((len(steps), num_keys), np.bool_)
    frames[np.repeat(np.arange(len(steps)), [len(step) for step in steps]), list(chain.from_iterable(steps))] = True
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    return Pieces(text.file, frames, offsets, text.sha256)


def _check_form(pieces: list[Any], part: str, num_keys: int, *, file: str) -> None:
    for number, piece in enumerate(pieces, start=1):
        if not isinstance(piece, list) or not piece:
            raise DataError(f"{part} piece {number}: expected a list of steps, got {_shown(piece)}", file=file)
        for place, step in enumerate(piece, start=1):
            if not isinstance(step, list) or not all(type(key) is int and 0 <= key < num_keys for key in step):
                raise DataError(
                    f"{part} piece {number}, step {place}: expected keys from 0 to {num_keys - 1}, got {_shown(step)};"
                    " see data.num_keys",
                    file=file,
                )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
