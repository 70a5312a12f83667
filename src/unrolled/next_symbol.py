"""Arrays of the next symbol's distribution: its best candidates, and draws from it.

The NumPy engine and ensembles use these functions as they are; for the PyTorch engine, which computes the same
on its own device, they are the definition that its tests compare with. Axes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import ConfigError, DivergenceError

__all__ = ["FloatArray", "IntArray", "SamplingPolicy", "check_log_probs", "draw", "filtered_probabilities", "top_k"]

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class SamplingPolicy:
    """How a distribution is filtered before a symbol is drawn from it.

    In this order: `banned` symbols are removed; log-probabilities are divided by `temperature`; the `top_k` most
    probable symbols stay; of these, renormalised, the smallest set of most probable ones whose sum reaches `top_p`
    stays (nucleus sampling, Holtzman et al. 2020, eq. 2). Ties go to the lower id.

    Parameters
    ----------
    temperature : float
        Above 0; 1 leaves the distribution as it is.
    top_k : int, optional
        At least 1; none for all symbols.
    top_p : float
        In (0, 1]; 1 for all symbols.
    banned : tuple of int
        Ids that are never drawn.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    banned: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError(f"sampling temperature must be above 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"sampling top_k must be at least 1, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"sampling top_p must be in (0, 1], got {self.top_p}")


def top_k(log_probs: FloatArray, k: int, *, banned: Sequence[int] = ()) -> tuple[IntArray, FloatArray]:
    """The k largest entries of each row, best first, ties by lower id.

    Parameters
    ----------
    log_probs : (R, V) array
        Nats.
    k : int
        Clipped to V.
    banned : sequence of int
        Ids that count as impossible: they come last, with log-probability -inf.

    Returns
    -------
    ids, values : (R, min(k, V)) arrays

    Raises
    ------
    DivergenceError
        If any entry is NaN.
    """
    check_log_probs(log_probs)
    values = _without(log_probs, banned)
    num_rows, vocabulary_size = values.shape
    k = min(k, vocabulary_size)
    threshold = np.partition(values, vocabulary_size - k, axis=1)[:, vocabulary_size - k, None]  # (R, 1)
    above, level = values > threshold, values == threshold
    room = k - above.sum(axis=1, keepdims=True)
    chosen = above | (level & (np.cumsum(level, axis=1) <= room))  # exactly k a row, whatever is level
    ids = np.nonzero(chosen)[1].reshape(num_rows, k)  # ascending, so that a stable sort leaves ties by lower id
    order = np.argsort(-np.take_along_axis(values, ids, axis=1), axis=1, kind="stable")
    ids = np.take_along_axis(ids, order, axis=1)
    return ids, np.take_along_axis(values, ids, axis=1)


def filtered_probabilities(log_probs: FloatArray, policy: SamplingPolicy) -> FloatArray:
    """The distribution that `policy` leaves of each row; sums to 1.

    Parameters
    ----------
    log_probs : (R, V) array
        Nats; need not be normalised.
    policy : SamplingPolicy

    Returns
    -------
    probabilities : (R, V) float64 array
    """
    values = _without(log_probs.astype(np.float64), policy.banned)
    values = (values - values.max(axis=1, keepdims=True)) / policy.temperature  # shift first: nothing overflows
    if policy.top_k is None and policy.top_p == 1.0:
        return _normalised(np.exp(values))
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.exp(np.take_along_axis(values, order, axis=1))
    if policy.top_k is not None:
        ranked[:, policy.top_k :] = 0.0
    ranked = _normalised(ranked)
    if policy.top_p < 1.0:
        reached = np.cumsum(ranked, axis=1) >= policy.top_p
        ranked[:, 1:][reached[:, :-1]] = 0.0  # the symbol that reaches top_p stays
        ranked = _normalised(ranked)
    probabilities: FloatArray = np.empty_like(ranked)
    np.put_along_axis(probabilities, order, ranked, axis=1)
    return probabilities


def _normalised(weights: FloatArray) -> FloatArray:
    """Each row divided by its sum."""
    shares: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return shares


def draw(probabilities: FloatArray, uniforms: FloatArray) -> IntArray:
    """One id a row by inverting the cumulative distribution over ascending ids.

    The id drawn is the first i with `p_0 + … + p_i > u · Σp`; ids of probability 0 are never drawn.

    Parameters
    ----------
    probabilities : (R, V) array
        Not negative; each row has a positive entry.
    uniforms : (R,) array
        In [0, 1).

    Returns
    -------
    ids : (R,) int64 array
    """
    cumulative = np.cumsum(probabilities, axis=1, dtype=np.float64)
    ids = (cumulative <= uniforms[:, None] * cumulative[:, -1:]).sum(axis=1)
    last_possible = probabilities.shape[1] - 1 - np.argmax(probabilities[:, ::-1] > 0.0, axis=1)
    drawn: IntArray = np.minimum(ids, last_possible)  # u · Σp may round up to Σp
    return drawn


def check_log_probs(log_probs: FloatArray) -> None:
    """Stop a search whose model answers NaN: every comparison after it would be meaningless.

    Raises
    ------
    DivergenceError
        If any value is NaN.
    """
    if np.isnan(log_probs).any():
        raise DivergenceError("the model gives NaN as log-probability; its weights are not finite: train it again")


def _without(log_probs: FloatArray, banned: Sequence[int]) -> FloatArray:
    """A copy in which the banned ids, where the vocabulary has them, are impossible."""
    values = log_probs.copy()
    values[:, [symbol for symbol in banned if symbol < values.shape[1]]] = -np.inf
    return values
