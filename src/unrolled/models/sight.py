"""Which positions a self-attention may look at, worked out once a call for all layers.

The queries are the last n of S positions. A causal query sees itself and what stands before it; with a window w the
positions nearer than w, ``|i − j| < w``, alone. No T × T mask is made where the past is empty, and none at all with a
window: blocks of queries look at the blocks of keys beside them, at a cost of O(n · w) in time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from unrolled.models.attention import dot_product_attention

__all__ = ["Sight", "causal_mask", "sight"]

_SMALLEST_BLOCK = 64  # of queries; smaller ones cost more to call than to compute


class Sight(Protocol):
    """What the queries of one call see."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Context (B, N, n, K) of queries (B, N, n, K) over keys and values (B, N, S, K)."""


def sight(
    num_queries: int,
    num_keys: int,
    real: Tensor | None,
    *,
    is_causal: bool,
    window: int | None,
    device: torch.device,
) -> Sight:
    """Sight of the last `num_queries` of `num_keys` positions.

    Parameters
    ----------
    num_queries, num_keys : int
        n and S.
    real : bool Tensor (B, S) or None
        Keys that are no padding; None for all.
    is_causal : bool
    window : int or None
        w; the past before the queries is then at most w − 1 positions.
    """
    if window is None or window >= num_keys:
        if is_causal:
            mask = causal_mask(real, num_keys - num_queries, num_queries, device)
            return Whole(mask, mask is None and num_queries > 1)
        return Whole(None if real is None else real[:, None, None, :], False)
    return Window.over(num_queries, num_keys, real, window, is_causal=is_causal, device=device)


@dataclass(frozen=True)
class Whole:
    """All keys, or those of a mask that broadcasts to (B, N, n, S), or causally those up to the query."""

    mask: Tensor | None
    is_causal: bool

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend in one call."""
        return dot_product_attention(query, keys, values, self.mask, causal=self.is_causal)


@dataclass(frozen=True)
class Window:
    """The keys near each query, block by block.

    Queries are cut into blocks of c ≥ w − 1. With as much as one block laid before them, the past at its end, query
    block b looks at blocks b and b + 1 of the keys, and where it is not causal at b + 2. `mask` (B or 1, blocks, 1, c,
    2c or 3c) holds what is near and real among these.
    """

    block: int
    mask: Tensor

    @classmethod
    def over(
        cls, num_queries: int, num_keys: int, real: Tensor | None, window: int, *, is_causal: bool, device: torch.device
    ) -> Window:
        """The windows of some queries; arguments as in `sight`."""
        block = max(_SMALLEST_BLOCK, -(-(window - 1) // 32) * 32)
        near = 2 if is_causal else 3
        ahead = torch.arange(near * block, device=device) - torch.arange(block, 2 * block, device=device).unsqueeze(1)
        band = (ahead > -window) & (ahead < (1 if is_causal else window))  # (c, 2c or 3c): key minus query
        there = torch.ones(1, num_keys, dtype=torch.bool, device=device) if real is None else real
        there = _laid_out(there[:, None, :, None], num_queries, block, near)  # (B, blocks, 1, 2c or 3c, 1)
        return cls(block, band & there.transpose(3, 4))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend with the blocks as rows of a batch."""
        B, n = len(query), query.shape[2]
        blocks, near = self.mask.shape[1], self.mask.shape[-1] // self.block
        rows = functional.pad(query, (0, 0, 0, blocks * self.block - n)).unflatten(2, (blocks, self.block))
        keys, values = (_laid_out(x, n, self.block, near).flatten(0, 1) for x in (keys, values))
        mask = self.mask.expand(B, -1, -1, -1, -1).flatten(0, 1)
        context = dot_product_attention(rows.transpose(1, 2).flatten(0, 1), keys, values, mask)  # (B·blocks, N, c, K)
        in_order: Tensor = context.unflatten(0, (B, blocks)).transpose(1, 2).flatten(2, 3)
        return in_order[:, :, :n]


def _laid_out(x: Tensor, num_queries: int, block: int, near: int) -> Tensor:
    """What stands near each block of queries, zero where nothing does: (B, N, S, K) → (B, blocks, N, near · c, K)."""
    blocks = -(-num_queries // block)
    front = block - (x.shape[2] - num_queries)
    back = (blocks + near - 1) * block - front - x.shape[2]
    cut = functional.pad(x, (0, 0, front, back)).unflatten(2, (-1, block)).transpose(1, 2)
    return torch.cat([cut[:, shift : shift + blocks] for shift in range(near)], dim=3)


def causal_mask(real: Tensor | None, past: int, n: int, device: torch.device) -> Tensor | None:
    """Keys that each new query may see: query i of n sees keys ≤ P + i (bottom right) that are real, and itself.

    None stands for plain causality, which needs no mask: without a past (padding on the right is never seen by a real
    token), or for one new token that sees everything.
    """
    if past == 0 or (real is None and n == 1):
        return None
    causal = torch.ones(n, past + n, dtype=torch.bool, device=device).tril(past)
    if real is None:
        return causal
    own = torch.eye(n, dtype=torch.bool, device=device)
    own = functional.pad(own, (past, 0))  # a padded token sees itself, so that no row is empty
    return ((real.unsqueeze(1) & causal) | own).unsqueeze(1)
