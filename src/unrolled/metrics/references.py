"""The right answers of a test set: grouped by what was asked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from unrolled.errors import DataError

__all__ = ["References", "Symbols"]

Symbols = tuple[str, ...]
"""One sequence, cut into the units that errors are counted in."""

T = TypeVar("T")


@dataclass(frozen=True)
class References:
    """All accepted answers of each distinct question, in the order of first appearance.

    Attributes
    ----------
    keys : tuple of hashable
        The distinct questions: (source, features).
    answers : tuple of tuple of Symbols
        For each key its distinct accepted answers.
    first : tuple of int
        For each key the index of the first line that asks it.
    num_lines : int
        Lines that were grouped.
    """

    keys: tuple[Hashable, ...]
    answers: tuple[tuple[Symbols, ...], ...]
    first: tuple[int, ...]
    num_lines: int

    @classmethod
    def from_lines(cls, keys: Sequence[Hashable], targets: Sequence[Sequence[str]]) -> References:
        """Group a test file, one key and one target a line.

        Raises
        ------
        DataError
            If there is no line, or not one target a key.
        """
        if len(keys) != len(targets):
            raise DataError(f"references: expected one a source, {len(keys)} in all, got {len(targets)}")
        if not keys:
            raise DataError("nothing to evaluate: no items")
        first: dict[Hashable, int] = {}
        answers: dict[Hashable, dict[Symbols, None]] = {}
        for line, (key, target) in enumerate(zip(keys, targets, strict=True)):
            first.setdefault(key, line)
            answers.setdefault(key, {})[tuple(target)] = None
        return cls(tuple(first), tuple(map(tuple, answers.values())), tuple(first.values()), len(keys))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_answers(self) -> int:
        """Distinct answers of all keys together."""
        return sum(map(len, self.answers))

    def pick(self, items: Sequence[T]) -> list[T]:
        """One item a key, from one item a line (that of the key's first line) or from one item a key (as they are).

        Raises
        ------
        DataError
            If there are neither as many items as lines nor as many as keys.
        """
        if len(items) == self.num_lines:
            return [items[line] for line in self.first]
        if len(items) == len(self.keys):
            return list(items)
        raise DataError(
            f"predictions: expected {self.num_lines}, one a line, or {len(self.keys)}, one a distinct source,"
            f" got {len(items)}"
        )
