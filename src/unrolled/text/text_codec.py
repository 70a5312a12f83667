"""Between running text and ids, in both directions: everything of a language model that depends on what text is."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from unrolled.config import Text
from unrolled.errors import VocabularyError
from unrolled.text.line_subwords import LineSubwords
from unrolled.text.normal_form import normalise
from unrolled.text.ragged import Ragged
from unrolled.text.subwords import Subwords
from unrolled.text.units import REPLACEMENT, UNITS, Bytes
from unrolled.text.vocabulary import BOS, EOS, PAD, SPECIAL_NAMES, UNK, Vocabulary

__all__ = ["TextCodec"]


@dataclass(frozen=True)
class TextCodec:
    """Normal form, units and vocabulary of a language model.

    A text is `symbols …`; where documents are marked, each is `BOS symbols … EOS`, and blank ones are left out.
    Symbols that are not in the vocabulary become `UNK`, or `<unk>` itself where a prepared corpus has taught that word.

    Parameters
    ----------
    text : Text
        Settings of the text that the model was trained on.
    vocabulary : Vocabulary
    subwords : LineSubwords, optional
        If text is cut into them.
    """

    text: Text
    vocabulary: Vocabulary
    subwords: LineSubwords | None = None

    @classmethod
    def fit(cls, text: Text, blocks: Iterable[str]) -> Self:
        """Take the vocabulary, and subwords where they are asked for, from training text in normal form."""
        if text.units == "byte":
            return cls(text, Vocabulary(Bytes.names))
        if text.units in ("bpe", "unigram"):
            learnt = LineSubwords.train(blocks, kind=text.units, num_symbols=text.num_subwords)
            return cls(text, Vocabulary(learnt.subwords.symbols), learnt)
        counts: Counter[str] = Counter()
        empty = cls(text, Vocabulary(()))
        for block in blocks:
            counts.update(UNITS[text.units].count(empty.documents(block)))
        return cls(text, Vocabulary.from_counts(counts, min_count=text.min_count, max_symbols=text.max_symbols))

    @property
    def start(self) -> NDArray[np.int32]:
        """What is read before the first symbol of a text: `BOS` or the end of a line; nothing if neither is known."""
        if self.text.document_end is not None:
            return np.array([BOS], dtype=np.int32)
        line_end = self.vocabulary.ids.get(Bytes.names[10] if self.text.units == "byte" else "\n")
        return np.array([] if line_end is None else [line_end], dtype=np.int32)

    def begun(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """A whole text as it is scored: after what `start` says, so that its first symbol is predicted too."""
        return tokens if self.text.document_end is not None else np.append(self.start, tokens)

    def documents(self, block: str) -> list[str]:
        """The documents of a block that ends with one; the whole block where none are marked."""
        if self.text.units == "word" and not self.text.line_ends:
            block = block.replace("\n", " ")
        if self.text.document_end is None:
            return [block]
        return [part for part in (part.strip("\n") for part in block.split(self.text.document_end)) if part.strip()]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Ids of some text that is no whole document, such as a prompt; normalised, and without `BOS` and `EOS`.

        Raises
        ------
        DataError
            If the text holds half of a surrogate pair.
        """
        return self._known(self.symbols([normalise(text, self.text.normal_form)])).values

    def symbols(self, texts: Sequence[str]) -> Ragged:
        """Ids of texts in normal form, whatever is not in the vocabulary as `UNK`."""
        units = self.subwords or UNITS[self.text.units]
        return units.encode(texts, self.vocabulary)

    def cut(self, text: str) -> list[str]:
        """Symbols of a text in normal form, known or not."""
        units = self.subwords or UNITS[self.text.units]
        return units.cut(text)

    def framed(self, documents: Ragged) -> Ragged:
        """Whole documents from `symbols` as a model reads them: with `BOS` and `EOS` where documents are marked."""
        rows = self._known(documents)
        if self.text.document_end is None:
            return rows
        ones = np.ones(len(rows), dtype=np.int64)
        first, last = (Ragged.from_lengths(np.full(len(rows), mark), ones) for mark in (BOS, EOS))
        return first.append(rows).append(last)

    def _known(self, rows: Ragged) -> Ragged:
        unknown = self.vocabulary.ids.get(SPECIAL_NAMES[UNK], UNK)
        return rows if unknown == UNK else Ragged(np.where(rows.values == UNK, unknown, rows.values), rows.offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; `<unk>` or U+FFFD for `UNK`, nothing for the other specials.

        Raises
        ------
        VocabularyError
            If an id is outside the vocabulary.
        """
        return "".join(self.pieces(ids))

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Text of each id as it comes; of bytes, a character comes with its last byte."""
        names = (self._name(int(id_)) for id_ in ids if id_ not in (PAD, BOS, EOS))
        if self.subwords is not None:
            return self.subwords.pieces(names)
        if self.text.units == "character":
            return names
        return _characters(names) if self.text.units == "byte" else _spaced(names)

    def names(self, ids: Iterable[int]) -> list[str]:
        """A label for each id, for pictures and messages."""
        return self.vocabulary.names(ids)

    def _name(self, id_: int) -> str:
        is_plain = id_ == UNK and self.text.units != "word"
        return REPLACEMENT if is_plain else self.vocabulary.names([id_])[0]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` gives an equal codec back."""
        learnt = {} if self.subwords is None else {"subwords": self.subwords.subwords.to_json()}
        return {"text": self.text.model_dump(mode="json"), "vocabulary": self.vocabulary.to_json(), **learnt}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        VocabularyError
            If it has another form.
        """
        if not isinstance(content, dict) or set(content) - {"subwords"} != {"text", "vocabulary"}:
            raise VocabularyError("codec: expected an object with 'text' and 'vocabulary'")
        try:
            text = Text.model_validate(content["text"])
        except ValidationError as error:
            raise VocabularyError(f"codec: settings of the text are not valid: {error}") from None
        learnt = LineSubwords(Subwords.from_json(content.get("subwords"))) if text.units in ("bpe", "unigram") else None
        return cls(text, Vocabulary.from_json(content["vocabulary"]), learnt)


def _spaced(words: Iterable[str]) -> Iterator[str]:
    """A space between two words, none beside the end of a line."""
    before = "\n"
    for word in words:
        yield word if "\n" in (before, word) else f" {word}"
        before = word


def _characters(names: Iterable[str]) -> Iterator[str]:
    """Bytes to characters; what is no UTF-8 becomes U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for name in names:
        yield decoder.decode(Bytes.values.get(name, REPLACEMENT.encode()))
    yield decoder.decode(b"", final=True)
