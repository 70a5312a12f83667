"""How a text is cut into symbols: code points, space-separated tokens, or bytes of its UTF-8 form.

Each kind cuts and joins one text, and counts and encodes many at once with array operations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import DataError
from unrolled.text.ragged import Ragged
from unrolled.text.vocabulary import UNK, Vocabulary

__all__ = ["UNITS", "Units", "chunks", "utf8"]

CHUNK = 1 << 16
"""Texts that are encoded at once: large enough for speed, small enough for memory."""
REPLACEMENT = "\ufffd"


class Units(Protocol):
    """One way of cutting text."""

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols; an unknown symbol is U+FFFD."""

    def head(self, text: str, num_symbols: int) -> str:
        """The longest beginning of a text that has no more symbols than this and cuts no code point."""

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Number of symbols of each text."""

    def count(self, texts: Sequence[str]) -> dict[str, int]:
        """How often each symbol occurs; a symbol that a vocabulary must have, whatever its count, is there too."""

    def encode(self, texts: Sequence[str], vocabulary: Vocabulary) -> Ragged:
        """Ids of each text, unknown symbols as `UNK`, without end symbol."""


class Characters:
    """One symbol a code point. Spaces are ordinary symbols and are kept exactly."""

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""
        return list(text)

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols."""
        return "".join(symbols)

    def head(self, text: str, num_symbols: int) -> str:
        """The beginning of a text."""
        return text[:num_symbols]

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Code points of each text."""
        return np.fromiter(map(len, texts), np.int64, len(texts))

    def count(self, texts: Sequence[str]) -> dict[str, int]:
        """How often each code point occurs."""
        counts: Counter[str] = Counter()
        for chunk in chunks(texts):
            by_code = np.bincount(_code_points(chunk))
            counts.update({chr(code): int(by_code[code]) for code in np.flatnonzero(by_code)})
        return counts

    def encode(self, texts: Sequence[str], vocabulary: Vocabulary) -> Ragged:
        """Ids of each text."""
        table = vocabulary.ids_by_code_point
        ids = [table[np.minimum(_code_points(chunk), table.size - 1)] for chunk in chunks(texts)]
        return Ragged.from_lengths(_joined(ids), self.lengths(texts))


class Tokens:
    """Symbols separated by spaces (U+0020 alone: other white space is part of a symbol).

    Leading, trailing and repeated spaces mean nothing; a text is joined with single spaces.
    """

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""
        symbols = text.split(" ")
        return symbols if all(symbols) else [symbol for symbol in symbols if symbol]

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols."""
        return " ".join(symbols)

    def head(self, text: str, num_symbols: int) -> str:
        """The beginning of a text."""
        return self.join(self.cut(text)[:num_symbols])

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.fromiter((len(self.cut(text)) for text in texts), np.int64, len(texts))

    def count(self, texts: Sequence[str]) -> dict[str, int]:
        """How often each token occurs."""
        return Counter(chain.from_iterable(map(self.cut, texts)))

    def encode(self, texts: Sequence[str], vocabulary: Vocabulary) -> Ragged:
        """Ids of each text."""
        known = vocabulary.ids
        ids, lengths = [], []
        for chunk in chunks(texts):
            rows = list(map(self.cut, chunk))
            lengths.append(np.fromiter(map(len, rows), np.int64, len(rows)))
            ids.append(np.fromiter((known.get(symbol, UNK) for symbol in chain.from_iterable(rows)), np.int32))
        return Ragged.from_lengths(_joined(ids), np.concatenate([np.empty(0, dtype=np.int64), *lengths]))


class Words(Tokens):
    """Words between ASCII white space, and the end of a line as a symbol of its own, written as it is.

    Other white space, such as U+00A0 or U+FEFF, is part of a word.
    """

    _pattern = re.compile(r"[^ \t\r\f\v\n]+|\n")

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""
        return self._pattern.findall(text)

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols: single spaces between words, none beside the end of a line."""
        return " ".join(symbols).replace(" \n", "\n").replace("\n ", "\n")


class Bytes:
    """One symbol a byte of the UTF-8 form, named by the ASCII character or as `0xE2`.

    All 256 are always known, so nothing is unknown to such a model. Bytes that are not UTF-8 when joined become
    U+FFFD, one for each longest part that could have begun a character (Unicode 3.9, table 3-8).
    """

    names = tuple(chr(byte) if 0x20 <= byte < 0x7F else f"0x{byte:02X}" for byte in range(256))
    values = {name: bytes([byte]) for byte, name in enumerate(names)}  # noqa: RUF012

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""
        return [self.names[byte] for byte in utf8(text)]

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols."""
        unknown = REPLACEMENT.encode()
        return b"".join(self.values.get(symbol, unknown) for symbol in symbols).decode(errors="replace")

    def head(self, text: str, num_symbols: int) -> str:
        """The beginning of a text."""
        return utf8(text)[:num_symbols].decode(errors="ignore")

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Bytes of each text."""
        return np.fromiter((len(utf8(text)) for text in texts), np.int64, len(texts))

    def count(self, texts: Sequence[str]) -> dict[str, int]:
        """How often each byte occurs, and 0 for those that do not."""
        counts = np.zeros(256, dtype=np.int64)
        for chunk in chunks(texts):
            counts += np.bincount(_byte_values(chunk), minlength=256)
        return dict(zip(self.names, counts.tolist(), strict=True))

    def encode(self, texts: Sequence[str], vocabulary: Vocabulary) -> Ragged:
        """Ids of each text."""
        table = np.array([vocabulary.ids.get(name, UNK) for name in self.names], dtype=np.int32)
        ids = [table[_byte_values(chunk)] for chunk in chunks(texts)]
        return Ragged.from_lengths(_joined(ids), self.lengths(texts))


UNITS: dict[str, Units] = {
    "character": Characters(),
    "space": Tokens(),
    "word": Words(),
    "byte": Bytes(),
}


def chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts of many texts, in their order, each small enough for arrays of its symbols."""
    return (texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK))


def _joined(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.empty(0, dtype=np.int32), *parts])


def _code_points(texts: Sequence[str]) -> NDArray[np.uint32]:
    return np.frombuffer(_encoded("".join(texts), "utf-32-le"), dtype="<u4")


def _byte_values(texts: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer(utf8("".join(texts)), dtype=np.uint8)


def utf8(text: str) -> bytes:
    """Bytes of a text; `DataError` if it holds half of a surrogate pair."""
    return _encoded(text, "utf-8")


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise DataError(
            f"character {error.start + 1} is U+{code:04X}, half of a surrogate pair and no character by itself"
        ) from None
