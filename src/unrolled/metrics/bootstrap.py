"""How sure a rate is: percentile bootstrap over sources (Efron & Tibshirani 1993, ch. 13).

A rate is `Σ errors / Σ trials` over N sources. One resample draws N sources with replacement, which weights each
source by how often it was drawn; the sums of a whole block of resamples are one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import DataError, ShapeError

__all__ = ["RESAMPLES", "Counts", "Difference", "Estimate", "bootstrap_rate", "paired_difference"]

RESAMPLES = 1000
BLOCK = 1 << 20  # weights held at once
LEVEL = (2.5, 97.5)  # percentiles that bound a 95 % interval

Floats = NDArray[np.float64]


class Counts(NamedTuple):
    """Of each source, how many errors were made and how many could have been made, `(N,)` each."""

    errors: NDArray[np.int64]
    trials: NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A rate, or a difference of rates, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % [{100 * self.low:.2f}, {100 * self.high:.2f}]"


@dataclass(frozen=True)
class Difference:
    """Two systems' rates on the same sources.

    Attributes
    ----------
    first, second : float
        The two rates.
    difference : Estimate
        `second - first`: below 0 where the second makes fewer errors.
    probability_lower : float
        Share of the resamples in which the second's rate is the lower one; ties count half.
    p_value : float
        Two-sided: twice the share of the resamples, the data itself counted among them, on the rarer side of 0.
    """

    first: float
    second: float
    difference: Estimate
    probability_lower: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.difference}, p = {self.p_value:.3f}, lower in {100 * self.probability_lower:.1f} % of resamples"


def bootstrap_rate(counts: Counts, *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """A rate and its 95 % interval.

    Parameters
    ----------
    counts : Counts
        Of N sources.
    resamples : int
    seed : int
        The same seed draws the same resamples.

    Raises
    ------
    DataError
        If there are no sources, or nothing could have been wrong.
    ShapeError
        If errors and trials differ in length.
    """
    columns = _columns(counts)
    return _estimate(_rates(columns.sum(axis=0))[0], _rates(_resampled(columns, resamples, seed)))


def paired_difference(first: Counts, second: Counts, *, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """Whether the second system is better than the first: each resample draws the same sources for both.

    Parameters
    ----------
    first, second : Counts
        Of the same N sources in the same order.
    resamples : int
    seed : int

    Raises
    ------
    DataError
        If there are no sources, or nothing could have been wrong.
    ShapeError
        If the systems differ in their number of sources.
    """
    columns = _columns(first, second)
    rates = _rates(columns.sum(axis=0))
    resampled = _rates(_resampled(columns, resamples, seed))
    differences = resampled[:, 1] - resampled[:, 0]
    not_above, not_below = (differences <= 0).sum(), (differences >= 0).sum()
    return Difference(
        first=float(rates[0]),
        second=float(rates[1]),
        difference=_estimate(rates[1] - rates[0], differences),
        probability_lower=float((not_above + len(differences) - not_below) / (2 * len(differences))),
        p_value=float(min(1.0, 2 * (min(not_above, not_below) + 1) / (len(differences) + 1))),
    )


def _columns(*systems: Counts) -> Floats:
    """Errors and trials of all systems side by side: `(N, 2 · systems)`."""
    arrays = [np.asarray(column, dtype=np.float64) for counts in systems for column in counts]
    sizes = {column.shape for column in arrays}
    if len(sizes) > 1:
        raise ShapeError(f"bootstrap: errors and trials must be of the same sources, got sizes {sorted(sizes)}")
    if not arrays[0].size:
        raise DataError("nothing to evaluate: no items")
    if not all(trials.any() for trials in arrays[1::2]):
        raise DataError("no reference symbols to score: every reference is empty")
    return np.stack(arrays, axis=1)


def _resampled(columns: Floats, resamples: int, seed: int) -> Floats:
    """Sums of each column in each resample: `(resamples, C)`."""
    num_sources = len(columns)
    rng = np.random.default_rng(seed)
    rows = max(1, BLOCK // num_sources)  # resamples of a block
    sums = []
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = rng.integers(num_sources, size=(size, num_sources))
        cells = (drawn + num_sources * np.arange(size)[:, None]).ravel()
        weights = np.bincount(cells, minlength=size * num_sources).reshape(size, num_sources)
        sums.append(weights @ columns)  # (size, N) @ (N, C)
    return np.concatenate(sums)


def _rates(sums: Floats) -> Floats:
    """Errors over trials, `(..., C) -> (..., C / 2)`; resamples without any trial are left out."""
    errors, trials = sums[..., 0::2], sums[..., 1::2]
    if sums.ndim > 1:
        has_trials = (trials > 0).all(axis=1)
        errors, trials = errors[has_trials], trials[has_trials]
    return errors / trials


def _estimate(value: np.float64, resampled: Floats) -> Estimate:
    low, high = np.percentile(resampled, LEVEL)
    return Estimate(float(value), float(low), float(high))
