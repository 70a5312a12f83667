"""Positions of a Transformer: sinusoidal and rotary, both from a formula and so without a longest length."""

from __future__ import annotations

import torch
from torch import Tensor

from unrolled.models.device import longest_float

__all__ = ["rotated", "sinusoids", "symbol_positions", "turns"]

_BASE = 1e4


def _angles(positions: Tensor, width: int) -> Tensor:
    """``pos / 10000^(2i / width)`` for i = 0 … ⌈width / 2⌉ − 1, in float64: (...) → (..., ⌈width / 2⌉)."""
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=longest_float(positions.device))
    return positions.unsqueeze(-1) * _BASE ** (-pairs / width)


def symbol_positions(source: Tensor, mask: Tensor, first_feature: int) -> Tensor:
    """Positions (B, S) of the symbols among sources (B, S); features and padding stand at 0."""
    steps = torch.arange(source.shape[1], device=source.device)
    return steps.expand_as(source).masked_fill((source >= first_feature) | ~mask, 0)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Interleaved sine and cosine of each position (Vaswani et al. 2017, section 3.5).

    Parameters
    ----------
    positions : int Tensor (...)
    width : int
        Odd widths end with a sine.

    Returns
    -------
    Tensor (..., width) of float64, where the device has it
    """
    angles = _angles(positions, width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]


def turns(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """``exp(i · angle)`` of each position and pair (Su et al. 2021), once a call for all layers.

    Parameters
    ----------
    positions : int Tensor (B, T)
    width : int
        K, of a head; even.
    dtype : torch.dtype
        Of the queries and keys.

    Returns
    -------
    complex Tensor (B, T, 1, 1, K/2)
    """
    angles = _angles(positions, width)[:, :, None, None]
    exact = torch.promote_types(dtype, torch.float32)
    return torch.polar(torch.ones_like(angles), angles).to(exact.to_complex())


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair (2i, 2i + 1) of queries and keys by their position's angle (Su et al. 2021, eq. 34).

    Parameters
    ----------
    x : Tensor (B, T, P, N, K)
        P of them at each position: query and key.
    turn : complex Tensor (B, T, 1, 1, K/2)
        From `turns`.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.view_as_complex(x.to(exact).unflatten(-1, (-1, 2)))  # a turn is a product of complex numbers
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
