"""Dropout with cheap random numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Dropout", "dropout", "variational_dropout"]

Dropout = Callable[[Tensor, float, bool], Tensor]

_WORD = 8  # bytes of a 64-bit draw


def dropout(x: Tensor, rate: float, is_training: bool) -> Tensor:
    """Zero a share of the elements and scale the others up, so that the mean is kept (Srivastava et al. 2014).

    Parameters
    ----------
    x : Tensor
        Any shape.
    rate : float
        Share that is dropped, rounded to 1/256 on a CPU.
    is_training : bool
        Otherwise `x` is returned as it is.

    Notes
    -----
    On a CPU drawing the random numbers costs more than the rest of a layer's elementwise work. Each 64-bit draw of
    PyTorch's generator therefore serves eight elements, a byte each; the kept elements are scaled by the rounded rate.
    """
    if not is_training or rate == 0.0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, rate, training=True)
    threshold = min(255, max(1, round(rate * 256)))
    words = torch.empty(-(-x.numel() // _WORD), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= threshold
    return x * kept.to(x.dtype).mul_(256 / (256 - threshold))


def variational_dropout(x: Tensor, rate: float, is_training: bool) -> Tensor:
    """`dropout` with one mask a row of x (B, T, H), the same at all T steps (Gal & Ghahramani 2016)."""
    if not is_training or rate == 0.0:
        return x
    return x * dropout(x.new_ones(len(x), 1, x.shape[2]), rate, True)
