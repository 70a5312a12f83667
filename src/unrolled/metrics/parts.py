"""Where it goes wrong: errors by part of the test set, and the worst predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unrolled.metrics.edits import Errors
from unrolled.metrics.references import References, Symbols

__all__ = ["Group", "Item", "by_length", "by_training", "group", "worst_items"]

NUM_BINS = 8


@dataclass(frozen=True)
class Group:
    """A part of the sources and what is wrong in it."""

    name: str
    num_sources: int
    num_wrong: int
    num_edits: int
    num_symbols: int

    @property
    def error_rate(self) -> float:
        """Share of wrong predictions, 0 to 1."""
        return self.num_wrong / self.num_sources

    def to_json(self) -> dict[str, Any]:
        """All counts and the error rate."""
        return {**asdict(self), "error_rate": self.error_rate}


@dataclass(frozen=True)
class Item:
    """One prediction beside the nearest answer."""

    line: int
    """The first line that asks this source, counted from 1."""
    source: str
    prediction: Symbols
    nearest: Symbols
    edits: int


def group(name: str, errors: Errors, members: NDArray[np.bool_]) -> Group:
    """Count what is wrong among the members, `(N,)`."""
    edits = errors.edits[members]
    num_wrong, num_symbols = int((edits > 0).sum()), int(errors.num_symbols[members].sum())
    return Group(name, int(members.sum()), num_wrong, int(edits.sum()), num_symbols)


def by_training(errors: Errors, is_seen: NDArray[np.bool_]) -> tuple[Group, ...]:
    """Sources that occur in the training data, and those that do not; parts without any are left out."""
    parts = (("seen in training", is_seen), ("not seen", ~is_seen))
    return tuple(group(name, errors, members) for name, members in parts if members.any())


def by_length(errors: Errors, lengths: NDArray[np.int64]) -> tuple[Group, ...]:
    """About equally many sources a group; a length is never split over two groups."""
    shares = np.arange(1, NUM_BINS) / NUM_BINS
    tops = np.unique([*np.quantile(lengths, shares, method="inverted_cdf"), lengths.max()])  # last length of each group
    groups, below = [], -1
    for top in tops.tolist():
        members = (below < lengths) & (lengths <= top)
        lowest = lengths[members].min()
        groups.append(group(f"{lowest}" if lowest == top else f"{lowest}–{top}", errors, members))
        below = top
    return tuple(groups)


def worst_items(
    errors: Errors, references: References, sources: Sequence[str], predictions: Sequence[Symbols], *, limit: int
) -> tuple[Item, ...]:
    """The wrong predictions with the most edits, ties in the order given."""
    order = np.argsort(-errors.edits, kind="stable")[: min(limit, int(errors.is_wrong.sum()))].tolist()
    return tuple(
        Item(references.first[i] + 1, sources[i], predictions[i], errors.nearest[i], int(errors.edits[i]))
        for i in order
    )
