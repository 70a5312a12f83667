"""Between text and ids, in both directions: everything of a model that depends on what text is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from unrolled.config import Data, Side
from unrolled.errors import ConfigError, VocabularyError
from unrolled.text.normal_form import NormalForm, normalise, recompose
from unrolled.text.ragged import Ragged
from unrolled.text.subwords import Subwords
from unrolled.text.units import REPLACEMENT, UNITS, Units
from unrolled.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

__all__ = ["Codec", "Learnt"]


class Learnt(NamedTuple):
    """Subwords of the sides that are cut into them; none of those that need no learning."""

    source: Subwords | None = None
    target: Subwords | None = None

    @classmethod
    def of(cls, data: Data, sources: Sequence[str], targets: Sequence[str]) -> Self:
        """Learn from training texts what `data` asks for."""
        if data.shared_vocabulary:
            both = _subwords(data.source, [*sources, *targets], data.normal_form)
            return cls(both, both)
        return cls(_subwords(data.source, sources, data.normal_form), _subwords(data.target, targets, data.normal_form))

    def units(self, data: Data) -> tuple[Units, Units]:
        """How the source and the target are cut."""
        return self.source or UNITS[data.source.units], self.target or UNITS[data.target.units]


NOTHING = Learnt()


def _subwords(side: Side, texts: Sequence[str], form: NormalForm) -> Subwords | None:
    if side.units not in ("bpe", "unigram"):
        return None
    return Subwords.train([normalise(text, form) for text in texts], kind=side.units, num_symbols=side.num_subwords)


@dataclass(frozen=True)
class Codec:
    """Normal form, units and vocabularies of a model.

    A source row is `symbols … EOS features …`, a target row `symbols … EOS`. Symbols that are not in the
    vocabulary become `UNK`; where a model writes `UNK`, the text has U+FFFD.

    Parameters
    ----------
    data : Data
        Settings of the data that the model was trained on.
    source, target : Vocabulary
        Of the two sides; only the source's may have features.
    learnt : Learnt
        Subwords, where a side is cut into them.
    """

    data: Data
    source: Vocabulary
    target: Vocabulary
    learnt: Learnt = NOTHING

    @classmethod
    def fit(
        cls,
        data: Data,
        sources: Sequence[str],
        targets: Sequence[str],
        features: Iterable[Sequence[str]] | None = None,
        *,
        learnt: Learnt | None = None,
    ) -> Self:
        """Take the vocabularies from training texts, and subwords where they are not learnt already.

        Raises
        ------
        ConfigError
            If `min_count` or `max_symbols` is set for bytes, which are all kept.
        """
        form = data.normal_form
        known = (
            None
            if features is None
            else tuple(sorted({normalise(name, form) for names in set(map(tuple, features)) for name in names}))
        )
        learnt = learnt or Learnt.of(data, sources, targets)
        source_units, target_units = learnt.units(data)
        if data.shared_vocabulary:
            source = target = _vocabulary(data.source, source_units, [*sources, *targets], form)
        else:
            source = _vocabulary(data.source, source_units, sources, form)
            target = _vocabulary(data.target, target_units, targets, form)
        return cls(data, replace(source, features=known), target, learnt)

    @cached_property
    def units(self) -> tuple[Units, Units]:
        """How the source and the target are cut."""
        return self.learnt.units(self.data)

    def encode_source(self, text: str, features: Sequence[str] = ()) -> NDArray[np.int32]:
        """Ids of one source, `symbols … EOS features …`.

        Raises
        ------
        DataError
            If the text holds half of a surrogate pair.
        """
        return self.encode_sources([text], [tuple(features)])[0]

    def encode_target(self, text: str) -> NDArray[np.int32]:
        """Ids of one target, `symbols … EOS`."""
        return self.encode_targets([text])[0]

    def encode_sources(self, texts: Sequence[str], features: Sequence[tuple[str, ...]] | None = None) -> Ragged:
        """Ids of many sources at once; see `encode_source`."""
        rows = self._encode(texts, self.units[0], self.source)
        if features is None or self.source.features is None:
            return rows
        form = self.data.normal_form
        known = {
            names: self.source.encode_features([normalise(name, form) for name in names]) for names in set(features)
        }
        return rows.append(Ragged.from_rows([known[names] for names in features]))

    def encode_targets(self, texts: Sequence[str]) -> Ragged:
        """Ids of many targets at once; see `encode_target`."""
        return self._encode(texts, self.units[1], self.target)

    def _encode(self, texts: Sequence[str], units: Units, vocabulary: Vocabulary) -> Ragged:
        form = self.data.normal_form
        rows = units.encode([normalise(text, form) for text in texts], vocabulary)
        ends = Ragged.from_lengths(np.full(len(rows), EOS, dtype=np.int32), np.ones(len(rows), dtype=np.int64))
        return rows.append(ends)

    def decode_target(self, ids: Iterable[int]) -> str:
        """Text of target ids up to the first `EOS`, in composed letters; U+FFFD for `UNK`.

        Raises
        ------
        VocabularyError
            If an id is outside the vocabulary.
        """
        ids = [int(id_) for id_ in ids]
        if EOS in ids:
            ids = ids[: ids.index(EOS)]
        ids = [id_ for id_ in ids if id_ not in (PAD, BOS)]
        names = self.target.names(ids)  # checks the ids
        symbols = (REPLACEMENT if id_ == UNK else name for id_, name in zip(ids, names, strict=True))
        return recompose(self.units[1].join(symbols), self.data.normal_form)

    def source_symbols(self, ids: Iterable[int]) -> list[str]:
        """A label for each id of a source row, for pictures."""
        return self.source.names(ids)

    def target_symbols(self, ids: Iterable[int]) -> list[str]:
        """A label for each id of a target row, for pictures."""
        return self.target.names(ids)

    def is_blank(self, text: str) -> bool:
        """Whether a line of prediction input says nothing: white space only, none of it known as a symbol."""
        text = normalise(text, self.data.normal_form)
        return not text.strip() and (
            self.learnt.source is not None or not any(symbol in self.source.ids for symbol in self.units[0].cut(text))
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` gives an equal codec back."""
        subwords = {side: found.to_json() for side, found in self.learnt._asdict().items() if found is not None}
        if self.data.shared_vocabulary:
            subwords.pop("target", None)
        return {
            "data": self.data.model_dump(mode="json"),
            "source": self.source.to_json(),
            "target": self.target.to_json(),
            **({"subwords": subwords} if subwords else {}),
        }

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        VocabularyError
            If it has another form.
        """
        if not isinstance(content, dict) or set(content) - {"subwords"} != {"data", "source", "target"}:
            raise VocabularyError("codec: expected an object with 'data', 'source' and 'target'")
        try:
            data = Data.model_validate(content["data"])
        except ValidationError as error:
            raise VocabularyError(f"codec: settings of the data are not valid: {error}") from None
        source, target = (Vocabulary.from_json(content[side]) for side in ("source", "target"))
        return cls(data, source, target, _learnt(data, content.get("subwords", {})))


def _learnt(data: Data, content: Any) -> Learnt:
    wanted = [name for name in ("source", "target") if getattr(data, name).units in ("bpe", "unigram")]
    stored = wanted[:1] if data.shared_vocabulary else wanted
    if not isinstance(content, dict) or sorted(content) != stored:
        raise VocabularyError(f"codec: expected subwords of {' and '.join(stored) or 'no side'}")
    read = {name: Subwords.from_json(content[name]) for name in stored}
    return Learnt(read.get("source"), read.get("source" if data.shared_vocabulary else "target"))


def _vocabulary(side: Side, units: Units, texts: Sequence[str], form: NormalForm) -> Vocabulary:
    counts = units.count([normalise(text, form) for text in texts])
    if isinstance(units, Subwords):
        return Vocabulary(tuple(counts))
    if side.units == "byte":
        if side.min_count > 1 or side.max_symbols is not None:
            raise ConfigError("units=byte keeps all 256 bytes: leave min_count and max_symbols unset")
        return Vocabulary(tuple(counts))
    return Vocabulary.from_counts(counts, min_count=side.min_count, max_symbols=side.max_symbols)
