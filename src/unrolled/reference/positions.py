"""Positions of a Transformer: sinusoidal and rotary, both from a formula and so without a longest length."""

from __future__ import annotations

import numpy as np

from unrolled.reference.layer import BoolArray, FloatArray, IntArray

__all__ = ["rotate_backward", "rotate_forward", "sinusoids", "symbol_positions"]

_BASE = 1e4


def _angles(positions: IntArray, width: int) -> FloatArray:
    """``pos / 10000^(2i / width)`` for i = 0 … ⌈width / 2⌉ − 1, in float64: (...) → (..., ⌈width / 2⌉)."""
    angles: FloatArray = positions[..., None] * _BASE ** (-np.arange(0, width, 2) / width)
    return angles


def symbol_positions(source: IntArray, mask: BoolArray, first_feature: int) -> IntArray:
    """Positions (B, S) of the symbols among sources (B, S); features and padding stand at 0."""
    return np.where((source >= first_feature) | ~mask, 0, np.arange(source.shape[1]))


def sinusoids(positions: IntArray, width: int) -> FloatArray:
    """Interleaved sine and cosine of each position (Vaswani et al. 2017, section 3.5).

    Parameters
    ----------
    positions : (...) int array
    width : int
        Odd widths end with a sine.

    Returns
    -------
    (..., width) float64 array
    """
    angles = _angles(positions, width)
    waves = np.empty((*positions.shape, width))
    waves[..., 0::2] = np.sin(angles)
    waves[..., 1::2] = np.cos(angles[..., : width // 2])
    return waves


def rotate_forward(x: FloatArray, positions: IntArray) -> tuple[FloatArray, IntArray]:
    """Turn each pair (2i, 2i + 1) of a query or key by its position's angle (Su et al. 2021, eq. 34).

    Parameters
    ----------
    x : (B, N, T, K) array
        K even.
    positions : (B, T) int array

    Returns
    -------
    rotated : (B, N, T, K) array
    positions : (B, T) int array
        The cache.
    """
    angles = _angles(positions, x.shape[-1])[:, None]  # (B, 1, T, K/2)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = np.empty_like(x)
    rotated[..., 0::2] = even * cos - odd * sin
    rotated[..., 1::2] = even * sin + odd * cos
    return rotated, positions


def rotate_backward(d_rotated: FloatArray, positions: IntArray) -> FloatArray:
    """Turn back: the transpose of a rotation is the rotation by the opposite angle."""
    return rotate_forward(d_rotated, -positions)[0]
