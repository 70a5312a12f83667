"""Random numbers that are a function of where they are used, not of what was drawn before.

A training that goes on after an interruption, or that cuts its batches in another way, meets the same chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["uniforms"]

GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(*key: int, rows: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), (N, count): number j of row i depends on key, `rows[i]` and j alone.

    Parameters
    ----------
    key : int
        What the numbers are for: a seed, and whatever tells uses of one seed apart; none below zero.
    rows : int array (N,)
        A number for each row, such as its index in an endless sequence of examples.
    count : int
        Numbers a row.

    Notes
    -----
    Row i is the stream of SplitMix64 (Steele, Lea & Flood 2014) from a state that mixes key and row; a number is the
    upper 53 bits of an output.
    """
    state = np.zeros(1, np.uint64)
    for part in key:
        state = _mixed((state ^ np.uint64(part)) + GAMMA)
    states = _mixed(state + GAMMA * np.asarray(rows).astype(np.uint64))  # (N,)
    places = GAMMA * np.arange(1, count + 1, dtype=np.uint64)  # (count,)
    bits = _mixed(states[:, None] + places) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64: every bit of the input changes about half of those of the output."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
