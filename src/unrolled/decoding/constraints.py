"""Limits on what a search may put out: checked once, then read by array operations at each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unrolled.errors import ConfigError, ShapeError, VocabularyError
from unrolled.next_symbol import IntArray
from unrolled.text.vocabulary import EOS, PAD

__all__ = ["Prefixes", "length_limits"]


def length_limits(max_length: int | IntArray, num_sources: int) -> IntArray:
    """The longest output of each source, EOS included: `(B,)`, from one number or one a source.

    Raises
    ------
    ShapeError
        If there is not one number a source.
    ConfigError
        If one is below 1.
    """
    limits: IntArray = np.asarray(max_length, dtype=np.int64)
    if limits.ndim > 0 and limits.shape != (num_sources,):
        raise ShapeError(f"max_length: expected one number or {num_sources}, one a source, got shape {limits.shape}")
    if limits.size and limits.min() < 1:
        raise ConfigError(f"max_length must be at least 1 (the end symbol counts), got {limits.min()}")
    return np.broadcast_to(limits, (num_sources,))


class Prefixes:
    """Symbols that each output is forced to begin with.

    Parameters
    ----------
    prefixes : sequence of 1-d arrays, optional
        One a source, possibly empty, without specials but UNK; none for no prefix at all.
    num_sources : int

    Raises
    ------
    ShapeError
        If there is not one prefix a source.
    VocabularyError
        If a prefix holds PAD, BOS, EOS, or an id outside the vocabulary.
    """

    def __init__(self, prefixes: Sequence[IntArray] | None, *, num_sources: int, vocabulary_size: int) -> None:
        prefixes = () if prefixes is None else prefixes
        if prefixes and len(prefixes) != num_sources:
            raise ShapeError(f"forced prefixes: expected one a source, {num_sources} in all, got {len(prefixes)}")
        self._ids = np.full((num_sources, max(map(len, prefixes), default=0)), PAD, dtype=np.int64)
        for row, prefix in zip(self._ids, prefixes, strict=False):
            row[: len(prefix)] = prefix
            if np.any((row[: len(prefix)] <= EOS) | (row[: len(prefix)] >= vocabulary_size)):
                known = f"{EOS + 1} to {vocabulary_size - 1}"
                raise VocabularyError(f"forced prefix: expected symbols, ids from {known}, got {prefix.tolist()}")

    def at(self, step: int, sources: IntArray) -> IntArray | None:
        """The id forced on each of these sources at `step` (from 0), PAD for a free choice; none if all are free."""
        if step >= self._ids.shape[1]:
            return None
        given: IntArray = self._ids[sources, step]
        return given
