"""Subwords learnt from a text: pieces of words, frequent words whole, by the library `tokenizers`.

A text is put behind one space and cut into words, each with the space before it; letters with their marks, digits and
other signs are words of their own, and so is white space beyond that. The bytes of a word's UTF-8 form are then joined
to pieces: by learnt merges (byte-pair encoding; Sennrich et al. 2016) or as the most probable sequence of pieces that
are drawn independently (unigram; Kudo 2018; `tokenizers` considers what stands in two different words). All 256
bytes are pieces, so nothing is unknown and every text comes back byte for byte.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import VocabularyError
from unrolled.text.ragged import Ragged
from unrolled.text.units import REPLACEMENT, chunks, utf8
from unrolled.text.vocabulary import UNK, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Kind", "Subwords"]

Kind = Literal["bpe", "unigram"]

LONGEST_PIECE = 32  # bytes; more than any script needs for a frequent word
SCORE_DIGITS = 6  # below them, sums depend on the order in which words are gone through
SPREAD = 0.0257  # bytes that no text needs get the least score, plus this times a number from 0 to 1
WORDS = r" ?[\p{L}\p{M}\x{200C}\x{200D}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}\x{200C}\x{200D}]+|\s"
STRETCH = re.compile(" [^ ]*")  # words never reach beyond it, so that each distinct one is cut once

_PRINTED = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(sorted(set(range(256)) - set(_PRINTED)))
BYTE_OF_LETTER = {chr(byte): byte for byte in _PRINTED} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""How `tokenizers` spells bytes: one letter each, printable ones as in Latin-1."""


@dataclass(frozen=True)
class Subwords:
    r"""One way of cutting text, learnt by `train`; the methods are those of all `Units`.

    A symbol is named by its text, with `\\` for a backslash and `\xe2` for a byte that is no character by itself.

    Parameters
    ----------
    kind : {"bpe", "unigram"}
    pieces : tuple of str
        Each piece's bytes, one letter a byte; see `BYTE_OF_LETTER`.
    merges : tuple of pairs
        Of `bpe`: which pieces are joined, first things first.
    scores : tuple of float
        Of `unigram`: ln P of each piece.
    """

    kind: Kind
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()

    @classmethod
    def train(cls, texts: Sequence[str], *, kind: Kind, num_symbols: int) -> Self:
        """Learn pieces from texts; the same texts give the same pieces.

        Parameters
        ----------
        texts : sequence of str
        kind : {"bpe", "unigram"}
        num_symbols : int
            At least 256; there are fewer pieces only where the texts have no more.

        Raises
        ------
        VocabularyError
            If `num_symbols` leaves no room for the bytes.
        DataError
            If a text holds half of a surrogate pair.
        """
        from tokenizers import models, trainers

        if num_symbols < len(BYTE_OF_LETTER):
            raise VocabularyError(f"subwords need room for all 256 bytes: expected 256 or more, got {num_symbols}")
        settings: dict[str, Any] = {
            "vocab_size": num_symbols,
            "initial_alphabet": sorted(BYTE_OF_LETTER),
            "special_tokens": [],
            "show_progress": False,
        }
        utf8("".join(texts))  # refuses what is no text
        if kind == "bpe":
            trained = _tokenizer(models.BPE())
            trainer: Any = trainers.BpeTrainer(**settings)
        else:
            trained = _tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(max_piece_length=LONGEST_PIECE, **settings)
        with _one_thread():
            trained.train_from_iterator(map(_spaced, texts), trainer)
        model = json.loads(trained.to_str())["model"]
        return cls._of_bpe(model) if kind == "bpe" else cls._of_unigram(model)

    @classmethod
    def _of_bpe(cls, model: dict[str, Any]) -> Self:
        pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
        return cls("bpe", tuple(pieces), merges=tuple((left, right) for left, right in model["merges"]))

    @classmethod
    def _of_unigram(cls, model: dict[str, Any]) -> Self:
        """The library numbers what it learns by chance, and so spreads bytes that were left over; both are redone."""
        scores = {piece: round(score, SCORE_DIGITS) for piece, score in model["vocab"]}
        least = min(scores.values())
        left_over = [piece for piece, score in scores.items() if len(piece) == 1 and score < least + SPREAD]
        scores |= dict.fromkeys(left_over, least)
        pieces = sorted(scores)
        return cls("unigram", tuple(pieces), scores=tuple(scores[piece] for piece in pieces))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of all symbols, by code point."""
        return tuple(sorted(self._names))

    def cut(self, text: str) -> list[str]:
        """Symbols of a text."""
        return [self._names[piece] for piece in self._cut_all([text]).values.tolist()]

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols; bytes that are not UTF-8 become U+FFFD, as does an unknown symbol."""
        unknown = REPLACEMENT.encode()
        text = b"".join(self.values.get(symbol, unknown) for symbol in symbols).decode(errors="replace")
        return text.removeprefix(" ")

    def head(self, text: str, num_symbols: int) -> str:
        """A beginning of a text that has no more symbols than this and cuts no code point."""
        first = b"".join(self.values[symbol] for symbol in self.cut(text)[:num_symbols])
        head = first.decode(errors="ignore").removeprefix(" ")
        while self.lengths([head])[0] > num_symbols:  # without the bytes of half a character, it is cut another way
            head = head[:-1]
        return head

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Symbols of each text."""
        found = [self._cut_all(chunk).lengths for chunk in chunks(texts)]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def count(self, texts: Sequence[str]) -> dict[str, int]:
        """How often each symbol occurs, and 0 for those that do not."""
        counts = np.zeros(len(self.pieces), dtype=np.int64)
        for chunk in chunks(texts):
            counts += np.bincount(self._cut_all(chunk).values, minlength=len(self.pieces))
        return dict(sorted(zip(self._names, counts.tolist(), strict=True)))

    def encode(self, texts: Sequence[str], vocabulary: Vocabulary) -> Ragged:
        """Ids of each text."""
        table = np.array([vocabulary.ids.get(name, UNK) for name in self._names], dtype=np.int32)
        rows = [self._cut_all(chunk) for chunk in chunks(texts)]
        ids = np.concatenate([np.empty(0, dtype=np.int32), *(table[part.values] for part in rows)])
        return Ragged.from_lengths(ids, np.concatenate([np.empty(0, dtype=np.int64), *(r.lengths for r in rows)]))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` gives equal subwords back."""
        learnt = {"merges": list(map(list, self.merges))} if self.kind == "bpe" else {"scores": list(self.scores)}
        return {"kind": self.kind, "pieces": list(self.pieces), **learnt}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        VocabularyError
            If it has another form.
        """
        try:
            if content["kind"] == "bpe":
                merges = tuple((str(left), str(right)) for left, right in content["merges"])
                read = cls("bpe", tuple(map(str, content["pieces"])), merges=merges)
            else:
                scores = tuple(map(float, content["scores"]))
                read = cls("unigram", tuple(map(str, content["pieces"])), scores=scores)
            is_whole = read.kind == content["kind"] and set(read.pieces) >= set(BYTE_OF_LETTER) and read._is_usable()
        except (KeyError, TypeError, ValueError):
            is_whole = False
        if not is_whole:
            raise VocabularyError("subwords: expected a kind, pieces with all 256 bytes, and their merges or scores")
        return read

    def _is_usable(self) -> bool:
        """Whether names can be told apart and the library takes the model."""
        try:
            return len(self.values) == len(self.pieces) and self._model.get_vocab_size() == len(self.pieces)
        except Exception:  # the library has no narrower one
            return False

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Name of each piece; no two are alike, since a backslash stands for itself only when doubled."""
        return tuple(
            _bytes_of(piece).replace(b"\\", b"\\\\").decode(errors="backslashreplace") for piece in self.pieces
        )

    @cached_property
    def values(self) -> dict[str, bytes]:
        """The bytes of each symbol."""
        return {name: _bytes_of(piece) for name, piece in zip(self._names, self.pieces, strict=True)}

    @cached_property
    def _model(self) -> Tokenizer:
        from tokenizers import models

        if self.kind == "bpe":
            return _tokenizer(models.BPE({piece: id_ for id_, piece in enumerate(self.pieces)}, list(self.merges)))
        return _tokenizer(models.Unigram(list(zip(self.pieces, self.scores, strict=True))))

    def _cut_all(self, texts: Sequence[str]) -> Ragged:
        """Places in `pieces` of what each text is cut into; each distinct stretch of text is cut once."""
        utf8("".join(texts))  # refuses what is no text
        stretches = [STRETCH.findall(_spaced(text)) for text in texts]
        known: dict[str, int] = {}
        order = [known.setdefault(stretch, len(known)) for stretch in chain.from_iterable(stretches)]
        with _one_thread():
            found = self._model.encode_batch_fast(list(known), add_special_tokens=False)
        pieces = Ragged.from_rows([item.ids for item in found]).take(np.array(order, dtype=np.int64))
        num_stretches = np.fromiter(map(len, stretches), np.int64, len(stretches))
        ends = np.concatenate([[0], np.cumsum(num_stretches)])
        return Ragged(pieces.values, pieces.offsets[ends])


def _spaced(text: str) -> str:
    """The first word of a text is spelt like the others, with a space before it."""
    return f" {text}" if text else ""


def _bytes_of(piece: str) -> bytes:
    return bytes(BYTE_OF_LETTER[letter] for letter in piece)


def _tokenizer(model: Any) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    tokenizer = Tokenizer(model)
    words = pre_tokenizers.Split(Regex(WORDS), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    return tokenizer


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the library from starting threads, of which it would warn whenever the program forks later."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = before or "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
