"""What search returns, and the score that it is sorted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import ConfigError
from unrolled.next_symbol import FloatArray, IntArray

__all__ = ["Hypothesis", "LengthPenalty"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """One output of a search.

    Attributes
    ----------
    ids : (n,) int64 array
        The symbols, without BOS and without EOS.
    log_prob : float
        The model's own sum of ln P in nats, that of EOS included where there is one.
    score : float
        `log_prob / lp(n)`; see `LengthPenalty`.
    is_finished : bool
        Whether EOS was reached; otherwise the output was cut at its maximum length.
    attention : (n + is_finished, S) array, optional
        Attention over the source when each symbol, EOS included, was predicted.
    """

    ids: IntArray
    log_prob: float
    score: float
    is_finished: bool
    attention: FloatArray | None = None


@dataclass(frozen=True)
class LengthPenalty:
    """lp(n) in `score = log_prob / lp(n)`; n counts the symbols, EOS included, BOS not.

    `none`: 1. `mean`: n. `gnmt`: ((5 + n) / 6)^alpha (Wu et al. 2016, eq. 14).

    Raises
    ------
    ConfigError
        If the kind is unknown or alpha is negative.
    """

    kind: Literal["none", "mean", "gnmt"] = "none"
    alpha: float = 0.6

    def __post_init__(self) -> None:
        if self.kind not in ("none", "mean", "gnmt"):
            raise ConfigError(f"length penalty must be one of none, mean, gnmt, got {self.kind!r}")
        if not 0.0 <= self.alpha < float("inf"):
            raise ConfigError(f"length penalty alpha must be 0 or more, got {self.alpha}")

    def __call__(self, lengths: IntArray | int) -> NDArray[np.float64]:
        """The divisor lp(n) of each length n."""
        n = np.asarray(lengths, dtype=np.float64)
        if self.kind == "mean":
            return n
        if self.kind == "gnmt":
            return ((5.0 + n) / 6.0) ** self.alpha
        return np.ones_like(n)

    def __str__(self) -> str:
        """The formula of the score, for people."""
        if self.kind == "mean":
            return "log_prob / n, n counts the end symbol"
        if self.kind == "gnmt":
            return f"log_prob / ((5 + n) / 6)^{self.alpha:g}, n counts the end symbol"
        return "log_prob"
