"""How surprised a model is: from summed nats and what they were summed over."""

from __future__ import annotations

import math

from unrolled.errors import DataError

__all__ = ["bits_per_unit", "perplexity"]


def perplexity(nats: float, num_labels: int) -> float:
    """`exp(nats / num_labels)`; compares only models that predict the same symbols.

    Parameters
    ----------
    nats : float
        `-Σ ln P` of all labels, without label smoothing.
    num_labels : int
        End symbols included, padding not.

    Returns
    -------
    float
        At least 1; infinite where it exceeds the range of floats.

    Raises
    ------
    DataError
        If there are no labels.
    """
    mean = _mean(nats, num_labels, "labels")
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


def bits_per_unit(nats: float, num_units: int) -> float:
    """`nats / (num_units · ln 2)`: per character or byte of the text it compares models with different symbols.

    Raises
    ------
    DataError
        If there are no units.
    """
    return _mean(nats, num_units, "characters") / math.log(2.0)


def _mean(nats: float, count: int, what: str) -> float:
    if count < 1:
        raise DataError(f"no {what} to score")
    return nats / count
