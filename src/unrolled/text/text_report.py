"""What is in a text, told before anything is trained on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.text.text_codec import TextCodec
from unrolled.text.unknown import UnknownSymbols
from unrolled.text.vocabulary import UNK
from unrolled.text.wording import counted

__all__ = ["PartReport", "TextReport", "TextTally", "unit_name"]


@dataclass(frozen=True)
class PartReport:
    """The training or the valid part of a text; `longest` counts characters of the longest line without its end."""

    files: tuple[str, ...]
    num_characters: int
    num_lines: int
    num_symbols: int
    """Symbols, and the start and end of each document where these are marked."""
    num_unknown: int
    """Symbols that are not in the vocabulary."""
    longest: int
    longest_line: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `dataclasses.asdict` gave."""
        return cls(**{**values, "files": tuple(values["files"])})


@dataclass(frozen=True)
class TextReport:
    """Everything that a person should see of a text before training.

    Parameters
    ----------
    units : str
        What symbols are.
    num_symbols : int
        Distinct ones in the vocabulary, specials not counted.
    train, valid : PartReport
        The latter without any character where there is none.
    notes : tuple of str
        One line each.
    """

    units: str
    num_symbols: int
    train: PartReport
    valid: PartReport
    notes: tuple[str, ...]

    def with_notes(self, notes: Iterable[str]) -> Self:
        """The report with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def lines(self) -> list[str]:
        """The report as text."""
        lines = [f"train: {_described(self.train)}"]
        lines += [f"valid: {_described(self.valid)}"] if self.valid.num_characters else []
        longest = f"longest line of train: {counted(self.train.longest, 'character')} (line {self.train.longest_line})"
        lines.append(f"vocabulary: {self.num_symbols:,} distinct {unit_name(self.units)}s; {longest}")
        return [*lines, *(f"note: {note}" for note in self.notes)]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `dataclasses.asdict` gave."""
        parts = {name: PartReport.from_json(values[name]) for name in ("train", "valid")}
        return cls(**{**values, **parts, "notes": tuple(values["notes"])})


def unit_name(units: str) -> str:
    """What a person calls one symbol."""
    return "subword" if units in ("bpe", "unigram") else units


def _described(part: PartReport) -> str:
    files = part.files[0] if len(part.files) == 1 else f"{len(part.files)} files"
    share = 100 * part.num_unknown / max(part.num_symbols, 1)
    unknown = f", {share:.2g} % unknown" if part.num_unknown else ""
    sizes = f"{part.num_symbols:,} symbols, {part.num_characters:,} characters, {part.num_lines:,} lines"
    return f"{sizes}{unknown} ({files})"


class TextTally:
    """Encodes a text block by block, and counts what goes by.

    Parameters
    ----------
    codec : TextCodec
    """

    def __init__(self, codec: TextCodec) -> None:
        self.codec = codec
        self.unknown = UnknownSymbols.of_text(codec)
        self.num_characters = self.num_symbols = 0
        self.line, self.begun = 1, 0  # the present line, and its characters so far
        self.longest, self.longest_line = 0, 1

    def encode(self, block: str) -> NDArray[np.int32]:
        """Ids of a block in normal form that ends with a document."""
        lines = block.split("\n")
        rows = self.codec.symbols(self.codec.documents(block))
        if (rows.values == UNK).any():
            for place, line in enumerate(lines):
                self.unknown.add(line, line=self.line + place)
        self._count_lines([len(line) for line in lines])
        self.num_characters += len(block)
        ids = self.codec.framed(rows).values
        self.num_symbols += ids.size
        return ids

    def _count_lines(self, lengths: list[int]) -> None:
        lengths[0] += self.begun
        most = max(lengths)
        if most > self.longest:
            self.longest, self.longest_line = most, self.line + lengths.index(most)
        self.begun, self.line = lengths[-1], self.line + len(lengths) - 1

    def report(self, files: Iterable[Path]) -> PartReport:
        """What went by so far."""
        return PartReport(
            files=tuple(path.name for path in files),
            num_characters=self.num_characters,
            num_lines=self.line - (self.begun == 0),
            num_symbols=self.num_symbols,
            num_unknown=sum(self.unknown.counts.values()),
            longest=self.longest,
            longest_line=self.longest_line,
        )
