"""Synthetic tasks: what is drawn, and how hard it is."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unrolled.config.base import Positive, Settings

__all__ = [
    "AddingTask",
    "AdditionTask",
    "CopyMemoryTask",
    "CopyTask",
    "DatesTask",
    "PairTask",
    "ReverseTask",
    "SortTask",
    "VectorTask",
]


class Task(Settings):
    """What all tasks have in common: examples never end, so an epoch is only the time between two evaluations."""

    epoch_size: Positive = 10_000
    """Training examples of an epoch, always new ones."""
    dev_size: Positive = 1000
    """Examples of the dev set and of the test set, which are the same under every seed."""


class SymbolTask(Task):
    """A string of symbols to another string of the same symbols; its length is uniform between the two limits."""

    alphabet: str = "abcdefgh"
    """The symbols, one a character, drawn uniformly."""
    min_length: Positive = 1
    length: Positive = 8
    """Longest string."""

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        symbols = self.alphabet
        if len(set(symbols)) < max(2, len(symbols)) or not symbols.isprintable() or " " in symbols:
            raise ValueError(f"alphabet needs two or more different visible characters, got {symbols!r}")
        if self.min_length > self.length:
            raise ValueError(f"min_length must not be above length, got {self.min_length} and {self.length}")
        return self


class CopyTask(SymbolTask):
    """The same string."""

    type: Literal["copy"] = "copy"


class ReverseTask(SymbolTask):
    """The string from its end to its start."""

    type: Literal["reverse"] = "reverse"


class SortTask(SymbolTask):
    """The string's symbols in the order of their code points."""

    type: Literal["sort"] = "sort"


class AdditionTask(Task):
    """The sum of two numbers: `27+5` to `32`."""

    type: Literal["addition"] = "addition"
    digits: Annotated[int, Field(ge=1, le=6)] = 3
    """Both numbers are uniform below ten to this power."""


class DatesTask(Task):
    """A day written in one of several ways to its ISO form: `March 5, 1998` to `1998-03-05`."""

    type: Literal["dates"] = "dates"
    first_year: Annotated[int, Field(ge=1000, le=9999)] = 1900
    last_year: Annotated[int, Field(ge=1000, le=9999)] = 2099
    """Days are uniform from the first of January of the one year to the last of December of the other."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_year > self.last_year:
            raise ValueError(f"first_year must not be after last_year, got {self.first_year} and {self.last_year}")
        return self


class AddingTask(Task):
    """The sum of the two marked numbers of a sequence (Hochreiter & Schmidhuber 1997), told after its last step."""

    type: Literal["adding"] = "adding"
    length: Annotated[int, Field(ge=2)] = 50
    """Steps; one mark is in each half."""


class CopyMemoryTask(Task):
    """Ten symbols to be given again after a long wait (Arjovsky et al. 2016)."""

    type: Literal["copy_memory"] = "copy_memory"
    lag: Positive = 50
    """T: steps between the last symbol read and the first symbol asked for; a sequence has T + 20 steps."""


PairTask = CopyTask | ReverseTask | SortTask | AdditionTask | DatesTask
VectorTask = AddingTask | CopyMemoryTask
