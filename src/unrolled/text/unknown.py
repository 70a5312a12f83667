"""Symbols that a model has never seen, collected over many lines and told in one."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Protocol

from unrolled.text.codec import Codec
from unrolled.text.normal_form import NormalForm, normalise
from unrolled.text.text_codec import TextCodec
from unrolled.text.vocabulary import Vocabulary
from unrolled.text.wording import counted

__all__ = ["UnknownSymbols"]

MOST_LISTED = 10


class Cutter(Protocol):
    """What cuts text into symbols."""

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""


class UnknownSymbols:
    """Counts what is not in a vocabulary, and where it was first met.

    Examples
    --------
    >>> codec = Codec.fit(Data(), ["abc"], ["x"])
    >>> unknown = UnknownSymbols.of_sources(codec)
    >>> unknown.add("abç", line=2)
    >>> unknown.summary()
    '1 symbol not seen in training: U+00E7 ç ×1 (line 2)'
    """

    def __init__(self, vocabulary: Vocabulary, units: Cutter, normal_form: NormalForm) -> None:
        self._vocabulary = vocabulary
        self._units = units
        self._normal_form = normal_form
        self.counts: dict[str, int] = {}
        """How often each unknown symbol was met, in the order of meeting."""
        self.first_lines: dict[str, int] = {}
        """The line in which each was met first; features are written `feature NAME`."""

    @classmethod
    def of_sources(cls, codec: Codec) -> UnknownSymbols:
        """Start a collection for a model's source side."""
        return cls(codec.source, codec.units[0], codec.data.normal_form)

    @classmethod
    def of_targets(cls, codec: Codec) -> UnknownSymbols:
        """Start a collection for a model's target side."""
        return cls(codec.target, codec.units[1], codec.data.normal_form)

    @classmethod
    def of_text(cls, codec: TextCodec) -> UnknownSymbols:
        """Start a collection for a language model."""
        return cls(codec.vocabulary, codec, codec.text.normal_form)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, text: str, *, line: int, features: Sequence[str] = ()) -> None:
        """Look through one text and its features."""
        symbols = self._units.cut(normalise(text, self._normal_form))
        if not self._vocabulary.ids.keys() >= set(symbols):
            for symbol in symbols:
                if symbol not in self._vocabulary.ids:
                    self._count(symbol, line)
        if self._vocabulary.features is not None:
            for feature in features:
                if normalise(feature, self._normal_form) not in self._vocabulary.feature_ids:
                    self._count(f"feature {feature}", line)

    def _count(self, symbol: str, line: int) -> None:
        self.counts[symbol] = self.counts.get(symbol, 0) + 1
        self.first_lines.setdefault(symbol, line)

    def summary(self, *, cause: str = "not seen in training") -> str:
        """All of it in one line, most frequent first; empty if nothing was unknown."""
        if not self.counts:
            return ""
        shown = [self._shown(symbol) for symbol in self._by_frequency()[:MOST_LISTED]]
        more = f" and {len(self.counts) - MOST_LISTED} more" if len(self.counts) > MOST_LISTED else ""
        return f"{counted(len(self.counts), 'symbol')} {cause}: {', '.join(shown)}{more}"

    def casing(self) -> str:
        """A line about letters that the training data had in the other case only; empty if there are none."""
        for name, other, change in (("upper", "lower", str.lower), ("lower", "upper", str.upper)):
            symbols = [
                symbol
                for symbol in self._by_frequency()
                if change(symbol) != symbol and change(symbol) in self._vocabulary.ids
            ]
            if symbols:
                total = sum(self.counts[symbol] for symbol in symbols)
                return (
                    f"{counted(total, 'symbol')} in {name} case that training had in {other} case only (for example"
                    f" {symbols[0]!r} in line {self.first_lines[symbols[0]]}): bring the input to {other} case"
                )
        return ""

    def _by_frequency(self) -> list[str]:
        return sorted(self.counts, key=lambda symbol: -self.counts[symbol])

    def _shown(self, symbol: str) -> str:
        return f"{label(symbol)} ×{self.counts[symbol]} (line {self.first_lines[symbol]})"


def label(symbol: str) -> str:
    """Name a symbol: its code point and, where a terminal can be trusted with it, the letter; longer ones in quotes."""
    if len(symbol) > 1:
        return symbol if symbol.startswith("feature ") else repr(symbol)
    code = f"U+{ord(symbol):04X}"
    is_plain = unicodedata.category(symbol)[0] in "LNPS" and ord(symbol) <= 0xFFFF
    return f"{code} {symbol}" if is_plain else code
