"""Edit distances (Levenshtein 1966) to the nearest accepted answer, and which edits they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from unrolled.errors import DataError
from unrolled.metrics.bootstrap import Counts
from unrolled.metrics.references import References, Symbols

__all__ = ["Confusion", "Errors", "confusions", "count_errors"]


@dataclass(frozen=True, eq=False)
class Errors:
    """What is wrong in each of N predictions.

    Attributes
    ----------
    edits : (N,) int64 array
        Insertions, deletions and substitutions from the nearest answer.
    num_symbols : (N,) int64 array
        Length of the nearest answer.
    nearest : tuple of Symbols
        Of the answers with the fewest edits the shortest, of those the first.
    """

    edits: NDArray[np.int64]
    num_symbols: NDArray[np.int64]
    nearest: tuple[Symbols, ...]

    @property
    def is_wrong(self) -> NDArray[np.bool_]:
        """`(N,)`: whether a prediction equals none of its answers."""
        return self.edits > 0

    @property
    def per_source(self) -> Counts:
        """Wrong predictions, one trial a source."""
        return Counts(self.is_wrong.astype(np.int64), np.ones_like(self.edits))

    @property
    def per_symbol(self) -> Counts:
        """Edits, one trial a symbol of the nearest answer."""
        return Counts(self.edits, self.num_symbols)

    @property
    def error_rate(self) -> float:
        """Share of the predictions that are wrong, 0 to 1 (WER, one a source)."""
        return float(self.is_wrong.mean())

    @property
    def symbol_error_rate(self) -> float:
        """Edits per symbol of the nearest answers, summed before they are divided (PER, CER).

        Raises
        ------
        DataError
            If all answers are empty.
        """
        if not self.num_symbols.any():
            raise DataError("no reference symbols to score: every reference is empty")
        return float(self.edits.sum() / self.num_symbols.sum())


def count_errors(predictions: Sequence[Sequence[str]], references: References) -> Errors:
    """Compare each prediction with the accepted answers of its source.

    Parameters
    ----------
    predictions : sequence of sequences of symbols
        One a line or one a distinct source, as `References.pick` takes them.
    references : References

    Raises
    ------
    DataError
        If the number of predictions fits neither.
    """
    predicted = references.pick(predictions)
    nearest = tuple(_nearest(tuple(item), answers) for item, answers in zip(predicted, references.answers, strict=True))
    edits = np.array([distance for distance, _, _ in nearest], dtype=np.int64)
    num_symbols = np.array([length for _, length, _ in nearest], dtype=np.int64)
    return Errors(edits, num_symbols, tuple(answer for _, _, answer in nearest))


def _nearest(prediction: Symbols, answers: tuple[Symbols, ...]) -> tuple[int, int, Symbols]:
    """Edits, length and the answer itself; `min` keeps the first of equals."""
    found = [(Levenshtein.distance(answer, prediction), len(answer), answer) for answer in answers]
    return min(found, key=lambda item: item[:2])


@dataclass(frozen=True)
class Confusion:
    """One kind of edit and how often it was needed; `expected` is empty for an insertion, `got` for a deletion."""

    count: int
    expected: str
    got: str

    def __str__(self) -> str:
        expected, got = (symbol.replace(" ", "␣") for symbol in (self.expected, self.got))
        if not expected:
            return f"extra {got}"
        return f"{expected} → {got}" if got else f"{expected} missing"


def confusions(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> tuple[Confusion, ...]:
    """The edits that turn answers into predictions, most frequent first, ties in the order of their symbols.

    Parameters
    ----------
    pairs : iterable of (answer, prediction)
    """
    counts: Counter[tuple[str, str]] = Counter()
    for answer, prediction in pairs:
        for edit in Levenshtein.editops(answer, prediction):
            expected = "" if edit.tag == "insert" else answer[edit.src_pos]
            counts[expected, "" if edit.tag == "delete" else prediction[edit.dest_pos]] += 1
    return tuple(
        Confusion(count, expected, got)
        for (expected, got), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
