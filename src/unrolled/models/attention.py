"""Attention: the scores of recurrent decoders and the scaled dot-product of Transformers.

A mask is boolean and True where a key may be attended to. The softmax is over the allowed keys; a row without any gives
weights 0 and context 0, with finite gradients, in every precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled.models.reused import Reused, affine

__all__ = ["SCORES", "Additive", "Dot", "General", "ScaledDot", "masked_softmax"]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the allowed keys of the last axis.

    Parameters
    ----------
    scores : Tensor (..., S)
    mask : bool Tensor, broadcastable to scores
        True = may be attended to.
    """
    # The most negative finite number keeps an empty row finite (uniform); the product then makes it zero.
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=-1) * mask


class Dot(nn.Module):
    """``score(s, h) = sᵀ h``; equal sizes only (Luong et al. 2015, eq. 8)."""

    def __init__(self, memory_size: int, hidden_size: int) -> None:
        super().__init__()
        assert memory_size == hidden_size

    def keys(self, output: Tensor) -> Tensor:
        """What a source position is compared by, computed once a source: (B, S, M) → (B, S, H)."""
        return output

    def scores(self, keys: Tensor) -> Callable[[Tensor], Tensor]:
        """For one pass: queries (B, n, H) of any step to their scores (B, n, S)."""
        return Reused(keys).product


class ScaledDot(Dot):
    """``score(s, h) = sᵀ h / √H``; equal sizes only (Vaswani et al. 2017, eq. 1)."""

    def scores(self, keys: Tensor) -> Callable[[Tensor], Tensor]:
        """For one pass: queries (B, n, H) of any step to their scores (B, n, S)."""
        product = super().scores(keys)
        return lambda query: product(query / math.sqrt(query.shape[-1]))


class General(Dot):
    """``score(s, h) = sᵀ W h`` (Luong et al. 2015, eq. 8)."""

    def __init__(self, memory_size: int, hidden_size: int) -> None:
        nn.Module.__init__(self)
        self.key = nn.Linear(memory_size, hidden_size, bias=False)

    def keys(self, output: Tensor) -> Tensor:
        """``W h``, computed once a source."""
        projected: Tensor = self.key(output)
        return projected


class Additive(nn.Module):
    """``score(s, h) = vᵀ tanh(W s + U h)`` (Bahdanau et al. 2014, appendix A.1.2; Luong's `concat` is the same)."""

    def __init__(self, memory_size: int, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(memory_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size))

    def keys(self, output: Tensor) -> Tensor:
        """``U h``, computed once a source."""
        projected: Tensor = self.key(output)
        return projected

    def scores(self, keys: Tensor) -> Callable[[Tensor], Tensor]:
        """For one pass: queries (B, n, H) of any step to their scores (B, n, S)."""
        project = affine(self.query)
        return lambda query: torch.tanh(project(query).unsqueeze(2) + keys.unsqueeze(1)) @ self.v  # of (B, n, S, H)


Score = Dot | Additive
SCORES: dict[str, type[Score]] = {"dot": Dot, "scaled_dot": ScaledDot, "general": General, "additive": Additive}


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, N·K) → (B, N, T, K)."""
    return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, N, T, K) → (B, T, N·K)."""
    return x.transpose(1, 2).flatten(2)


def dot_product_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, causal: bool = False
) -> Tensor:
    """``softmax_allowed(Q Kᵀ / √K) V`` (Vaswani et al. 2017, eq. 1).

    Parameters
    ----------
    query : Tensor (B, N, n, K)
    keys, values : Tensor (B, N, S, K)
    mask : bool Tensor, broadcastable to (B, N, n, S), or None
    causal : bool
        For n = S alone, where PyTorch's top-left alignment is right; excludes `mask`.

    Notes
    -----
    The weights are not materialised, except where they are no larger than the query itself (S ≤ K): there the plain
    products are faster on a CPU than the tiled kernel, which pays for whole tiles.
    """
    if keys.shape[2] <= query.shape[3]:
        return _plain_attention(query, keys, values, mask, causal=causal)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)


def _plain_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    scores = (query / math.sqrt(query.shape[-1])) @ keys.transpose(-1, -2)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return (torch.softmax(scores, dim=-1) if mask is None else masked_softmax(scores, mask)) @ values


def dot_product_weights(query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """Return the weights that `dot_product_attention` does not: (B, N, n, S)."""
    return masked_softmax(query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1]), mask)
