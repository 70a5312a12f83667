"""Subwords of running text: each line is cut by itself, so that it does not matter what stood before it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from unrolled.text.ragged import Ragged
from unrolled.text.subwords import Kind, Subwords
from unrolled.text.units import REPLACEMENT
from unrolled.text.vocabulary import Vocabulary

__all__ = ["LineSubwords"]

LINE = re.compile(r"[^\n]*\n|[^\n]+")
TAUGHT = 1 << 24
"""Characters that subwords are learnt from; more would teach little."""


class LineSubwords:
    """Subwords as units of running text; each line is behind one space and has its end as last symbol.

    Parameters
    ----------
    subwords : Subwords
    """

    def __init__(self, subwords: Subwords) -> None:
        self.subwords = subwords

    @classmethod
    def train(cls, blocks: Iterable[str], *, kind: Kind, num_symbols: int) -> LineSubwords:
        """Learn from the first 16 million characters of a text, block by block."""
        lines = chain.from_iterable(map(LINE.findall, _first(blocks, TAUGHT)))
        return cls(Subwords.train(list(lines), kind=kind, num_symbols=num_symbols))

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""
        return list(chain.from_iterable(map(self.subwords.cut, LINE.findall(text))))

    def encode(self, texts: Sequence[str], vocabulary: Vocabulary) -> Ragged:
        """Ids of each text."""
        lines = [LINE.findall(text) for text in texts]
        rows = self.subwords.encode(list(chain.from_iterable(lines)), vocabulary)
        ends = np.cumsum([0, *map(len, lines)])
        return Ragged(rows.values, rows.offsets[ends])

    def pieces(self, symbols: Iterable[str]) -> Iterator[str]:
        """Text of each symbol as it comes; a character comes with its last byte, and the space before a line never."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        is_first = True
        for symbol in symbols:
            value = self.subwords.values.get(symbol, REPLACEMENT.encode())
            yield decoder.decode(value.removeprefix(b" ") if is_first else value)
            is_first = value == b"\n"
        yield decoder.decode(b"", final=True)


def _first(blocks: Iterable[str], num_characters: int) -> Iterator[str]:
    """As many blocks as it takes to have so many characters, the last one cut."""
    for block in blocks:
        yield block[:num_characters]
        num_characters -= len(block)
        if num_characters <= 0:
            return
