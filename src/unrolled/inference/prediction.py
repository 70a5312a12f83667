"""What a model answers to one source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOTHING", "UNREADABLE", "Prediction"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """One output for one source.

    Attributes
    ----------
    text : str
        The output, in composed letters.
    log_prob : float
        ln P(output | source) in nats, the end symbol included.
    score : float
        What outputs are ranked by: `log_prob` divided by the run's length penalty.
    is_finished : bool
        Whether the model ended the output itself; otherwise it was cut at its greatest length.
    source_symbols, target_symbols : tuple of str
        What the model read and wrote, end symbols included.
    attention : (T, S) array, optional
        Weights over the source symbols for each target symbol; only on request.
    """

    text: str
    log_prob: float
    score: float
    is_finished: bool
    source_symbols: tuple[str, ...] = ()
    target_symbols: tuple[str, ...] = ()
    attention: NDArray[np.floating[Any]] | None = None


NOTHING = Prediction(text="", log_prob=0.0, score=0.0, is_finished=True)
"""The answer to a blank source: it is not given to the model."""

UNREADABLE = Prediction(text="", log_prob=-math.inf, score=-math.inf, is_finished=False)
"""The answer to a source with more symbols than the model has positions."""
