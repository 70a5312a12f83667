"""Training examples, and batches of them with the one-step shift of the targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.text.codec import Codec
from unrolled.text.ragged import Ragged
from unrolled.text.vocabulary import BOS, EOS, PAD

__all__ = ["Batch", "Examples", "collate", "shift", "show_batch"]


@dataclass(frozen=True)
class Examples:
    """Encoded pairs.

    Parameters
    ----------
    source, target : Ragged
        Ids of the N source and target rows, each with its `EOS`.
    rows : int64 array (N,)
        Which row of the `Pairs` each one is.
    """

    source: Ragged
    target: Ragged
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Symbols of all rows, both sides."""
        return self.source.values.size + self.target.values.size

    @property
    def side_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Symbols of each source and of each target, (N,) each."""
        return self.source.lengths, self.target.lengths

    def batch(self, indices: NDArray[Any]) -> Batch:
        """Put the examples with these indices into a batch."""
        return collate(self, indices)


@dataclass(frozen=True)
class Batch:
    """Examples side by side, padded on the right.

    Parameters
    ----------
    source : int64 array (B, S)
    source_mask : bool array (B, S)
        True for real symbols.
    inputs : int64 array (B, T)
        What the decoder is fed: `BOS`, then the target without its last symbol.
    labels : int64 array (B, T)
        What it should answer: the target with its `EOS`; `PAD` where there is none.
    rows : int64 array (B,)
        Which row of the `Pairs` each one is.
    """

    source: NDArray[np.int64]
    source_mask: NDArray[np.bool_]
    inputs: NDArray[np.int64]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def num_labels(self) -> int:
        """Labels that count, each row's `EOS` included."""
        return int((self.labels != PAD).sum())

    @property
    def num_tokens(self) -> int:
        """Real symbols of both sides."""
        return int(self.source_mask.sum()) + self.num_labels

    def part(self, rank: int, size: int) -> Self:
        """The rows of one of several processes, every `size`-th from `rank` on; columns of padding alone are left out.

        There may be no row at all.
        """
        mine = slice(rank, None, size)
        mask, labels = self.source_mask[mine], self.labels[mine]
        width, length = int(mask.any(axis=0).sum()), int((labels != PAD).any(axis=0).sum())
        return replace(
            self,
            source=self.source[mine, :width],
            source_mask=mask[:, :width],
            inputs=self.inputs[mine, :length],
            labels=labels[:, :length],
            rows=self.rows[mine],
        )


def collate(examples: Examples, indices: NDArray[Any]) -> Batch:
    """Put the examples with these indices into a batch."""
    source, source_mask = examples.source.pad(indices, fill=PAD)
    labels, _ = examples.target.pad(indices, fill=PAD)
    return Batch(source, source_mask, shift(labels), labels, examples.rows[indices])


def shift(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Decoder inputs (B, T) of labels (B, T): `BOS`, then each label one step later.

    Rows `[a,b,c,E]` and `[a,E,P,P]` are fed as `[S,a,b,c]` and `[S,a,E,P]`: the end symbol of a shorter row is fed
    where nothing is counted any more.
    """
    return np.concatenate([np.full((len(labels), 1), BOS), labels[:, :-1]], axis=1)


def show_batch(batch: Batch, codec: Codec, *, num_rows: int = 8) -> list[str]:
    """Lines that show the first rows of a batch as symbols: what is read, what is fed, what should come out."""
    marks = {PAD: "P", BOS: "S", EOS: "E"}

    def shown(ids: NDArray[np.int64], names: list[str]) -> str:
        return "[" + ",".join(marks.get(id_, name) for id_, name in zip(ids.tolist(), names, strict=True)) + "]"

    lines = []
    for row in range(min(num_rows, len(batch.rows))):
        source, inputs, labels = batch.source[row], batch.inputs[row], batch.labels[row]
        lines.append(f"row {batch.rows[row]} source {shown(source, codec.source_symbols(source))}")
        lines.append(f"  inputs {shown(inputs, codec.target_symbols(inputs))}")
        lines.append(f"  labels {shown(labels, codec.target_symbols(labels))}")
    return [*lines, f"{len(batch.rows)} rows, {batch.num_labels} labels counted"]
