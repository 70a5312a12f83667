"""Symbols and their ids.

Ids are `PAD 0, BOS 1, EOS 2, UNK 3`, then the symbols in the order of their code points, then (source side, where
features are declared) the unknown feature and the features. The order depends on nothing but which symbols there
are: not on their counts, on the order of lines, or on a hash seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import VocabularyError

__all__ = ["BOS", "EOS", "NUM_SPECIALS", "PAD", "SPECIAL_NAMES", "UNK", "Vocabulary"]

PAD, BOS, EOS, UNK = range(4)
NUM_SPECIALS = 4
SPECIAL_NAMES = ("<pad>", "<s>", "</s>", "<unk>")
"""How specials are labelled in pictures; never part of decoded text."""


@dataclass(frozen=True)
class Vocabulary:
    """Symbols, and features where they are declared.

    Parameters
    ----------
    symbols : tuple of str
        Distinct, in the order of their ids.
    features : tuple of str or None
        Known features in the order of their ids, after the unknown feature; None if none are declared.

    Raises
    ------
    VocabularyError
        If a symbol or a feature is there twice.
    """

    symbols: tuple[str, ...]
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, values in (("symbol", self.symbols), ("feature", self.features or ())):
            repeated = [value for value, count in Counter(values).items() if count > 1]
            if repeated:
                raise VocabularyError(f"vocabulary holds the {name} {repeated[0]!r} twice")

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        *,
        min_count: int = 1,
        max_symbols: int | None = None,
    ) -> Self:
        """Keep the most frequent symbols, ties by code point; order those kept by code point."""
        frequent = [symbol for symbol, count in counts.items() if count >= min_count]
        frequent.sort(key=lambda symbol: (-counts[symbol], symbol))
        return cls(tuple(sorted(frequent[:max_symbols])))

    def __len__(self) -> int:
        return self.first_feature + self.num_features

    @property
    def num_features(self) -> int:
        """Ids of features, the unknown one included; 0 if none are declared."""
        return 0 if self.features is None else 1 + len(self.features)

    @property
    def first_feature(self) -> int:
        """Id of the unknown feature, one more than the last symbol's."""
        return NUM_SPECIALS + len(self.symbols)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each symbol."""
        return {symbol: NUM_SPECIALS + place for place, symbol in enumerate(self.symbols)}

    @cached_property
    def ids_by_code_point(self) -> NDArray[np.int32]:
        """Id of each code point, for vocabularies of single characters; the last entry is for all beyond."""
        codes = [ord(symbol) for symbol in self.symbols]
        table = np.full(max(codes, default=0) + 2, UNK, dtype=np.int32)
        table[codes] = NUM_SPECIALS + np.arange(len(codes))
        return table

    @cached_property
    def feature_ids(self) -> dict[str, int]:
        """Id of each feature."""
        return {feature: self.first_feature + 1 + place for place, feature in enumerate(self.features or ())}

    def encode_features(self, features: Sequence[str]) -> NDArray[np.int32]:
        """Ids of features, the unknown feature for new ones; empty if none are declared."""
        if self.features is None:
            return np.empty(0, dtype=np.int32)
        return np.array([self.feature_ids.get(feature, self.first_feature) for feature in features], dtype=np.int32)

    def names(self, ids: Iterable[int]) -> list[str]:
        """A label for each id, for pictures and messages: symbols as they are, specials by their `SPECIAL_NAMES`.

        Raises
        ------
        VocabularyError
            If an id is outside the vocabulary.
        """
        ids, size = [int(id_) for id_ in ids], len(self)
        for id_ in ids:
            if not 0 <= id_ < size:
                raise VocabularyError(f"id {id_} is outside the vocabulary of {size}")
        return [self._names[id_] for id_ in ids]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        features = () if self.features is None else (SPECIAL_NAMES[UNK], *self.features)
        return (*SPECIAL_NAMES, *self.symbols, *features)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` gives an equal vocabulary back."""
        return {"symbols": list(self.symbols), "features": None if self.features is None else list(self.features)}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        VocabularyError
            If it has another form.
        """
        if not isinstance(content, dict) or set(content) != {"symbols", "features"}:
            raise VocabularyError("vocabulary: expected an object with 'symbols' and 'features'")
        symbols, features = content["symbols"], content["features"]
        for name, values in (("symbols", symbols), ("features", [] if features is None else features)):
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise VocabularyError(f"vocabulary: expected {name} to be a list of texts")
        return cls(tuple(symbols), None if features is None else tuple(features))
