"""Positions of a Transformer: sinusoidal and rotary, both from a formula and so without a longest length."""

from __future__ import annotations

import torch
from torch import Tensor

from unrolled.models.device import longest_float

__all__ = ["rotated", "sinusoids"]

_BASE = 1e4


def _angles(positions: Tensor, width: int) -> Tensor:
    """``pos / 10000^(2i / width)`` for i = 0 … ⌈width / 2⌉ − 1, in float64: (...) → (..., ⌈width / 2⌉)."""
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=longest_float(positions.device))
    return positions.unsqueeze(-1) * _BASE ** (-pairs / width)


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


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Turn each pair (2i, 2i + 1) of a query or key by its position's angle (Su et al. 2021, eq. 34).

    Parameters
    ----------
    x : Tensor (B, N, T, K)
        K even.
    positions : int Tensor (B, T)
    """
    angles = _angles(positions, x.shape[-1]).unsqueeze(1)  # (B, 1, T, K/2)
    exact = torch.promote_types(x.dtype, torch.float32)
    turn = torch.polar(torch.ones_like(angles), angles).to(exact.to_complex())
    pairs = torch.view_as_complex(x.to(exact).unflatten(-1, (-1, 2)))  # a turn is a product of complex numbers
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
