"""Several models searched as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unrolled import next_symbol
from unrolled.decoding.engine import Engine, Stepper
from unrolled.errors import VocabularyError
from unrolled.next_symbol import FloatArray, IntArray, SamplingPolicy

__all__ = ["Ensemble"]


class Ensemble:
    """An engine whose next-symbol distribution is the mean of its members': `ln P = ln (1/M · Σ_m P_m)`.

    Parameters
    ----------
    engines : sequence of Engine
        At least one.
    symbols : sequence of sequences of str, optional
        Each engine's symbols in the order of their ids. Where given they must be equal: ids are all that members share.

    Raises
    ------
    VocabularyError
        If the members' vocabularies differ, or there is no member.
    """

    def __init__(self, engines: Sequence[Engine], *, symbols: Sequence[Sequence[str]] = ()) -> None:
        if not engines:
            raise VocabularyError("an ensemble needs at least one model, got none")
        _check_equal(engines, symbols)
        self.engines = tuple(engines)
        self.vocabulary_size = engines[0].vocabulary_size

    def start(self, sources: Sequence[IntArray], *, need_attention: bool = False) -> EnsembleStepper:
        """Encode the sources with every member."""
        return EnsembleStepper([engine.start(sources, need_attention=need_attention) for engine in self.engines])

    def log_probs(self, sources: Sequence[IntArray], targets: Sequence[IntArray]) -> list[FloatArray]:
        """One array a pair: ln P of each id of the target."""
        members = [engine.log_probs(sources, targets) for engine in self.engines]
        return [_log_mean(np.stack(pair)) for pair in zip(*members, strict=True)]


class EnsembleStepper:
    """Steppers that are fed the same symbols."""

    def __init__(self, members: Sequence[Stepper]) -> None:
        self._members = members

    @property
    def num_rows(self) -> int:
        """R, the number of rows at present."""
        return self._members[0].num_rows

    def top_k(self, k: int, banned: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """The k best symbols of the mean distribution."""
        return next_symbol.top_k(self._log_probs(), k, banned=banned)

    def log_prob_of(self, ids: IntArray) -> FloatArray:
        """Log of the members' mean probability of one id a row."""
        return _log_mean(np.stack([member.log_prob_of(ids) for member in self._members]))

    def sample(self, policy: SamplingPolicy, uniforms: FloatArray) -> IntArray:
        """One id a row from the filtered mean distribution."""
        return next_symbol.draw(next_symbol.filtered_probabilities(self._log_probs(), policy), uniforms)

    def probabilities(self) -> FloatArray:
        """The mean distribution, float64."""
        mean: FloatArray = np.mean([member.probabilities() for member in self._members], axis=0, dtype=np.float64)
        return mean

    def attention(self) -> FloatArray:
        """The members' mean attention."""
        mean: FloatArray = np.mean([member.attention() for member in self._members], axis=0)
        return mean

    def advance(self, tokens: IntArray) -> None:
        """Feed every member the same symbols."""
        for member in self._members:
            member.advance(tokens)

    def select(self, rows: IntArray, sources: IntArray | None = None) -> None:
        """Keep the same rows and sources of every member."""
        for member in self._members:
            member.select(rows, sources)

    def _log_probs(self) -> FloatArray:
        with np.errstate(divide="ignore"):  # a probability that underflowed to 0 is impossible, -inf
            log_probs: FloatArray = np.log(self.probabilities())
        return log_probs


def _log_mean(log_probs: FloatArray) -> FloatArray:
    """`ln (1/M · Σ exp)` over the first axis, without underflow: (M, ...) -> (...)."""
    mean: FloatArray = np.logaddexp.reduce(log_probs.astype(np.float64), axis=0) - np.log(len(log_probs))
    return mean


def _check_equal(engines: Sequence[Engine], symbols: Sequence[Sequence[str]]) -> None:
    sizes = [engine.vocabulary_size for engine in engines]
    if len(set(sizes)) > 1:
        raise VocabularyError(
            f"an ensemble's models need equal vocabularies, got {sizes} symbols;"
            " train them on the same data and settings"
        )
    for number, other in enumerate(symbols[1:], start=2):
        if list(other) != list(symbols[0]):
            place = next((i for i, (a, b) in enumerate(zip(symbols[0], other, strict=False)) if a != b), None)
            what = "their numbers of symbols" if place is None else f"{symbols[0][place]!r} and {other[place]!r}"
            raise VocabularyError(
                f"an ensemble's models need equal vocabularies, but models 1 and {number} differ in {what};"
                " train them on the same data and settings"
            )
