"""The output layer, with a matrix of its own or tied to the embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Output"]


class Output(nn.Module):
    """``logits = W x + b``; a tied one has no W and uses the target embedding (Press & Wolf 2017)."""

    def __init__(self, input_size: int, num_symbols: int, *, is_tied: bool) -> None:
        super().__init__()
        self.is_tied = is_tied
        if not is_tied:
            self.weight = nn.Parameter(torch.empty(num_symbols, input_size))
        self.bias = nn.Parameter(torch.empty(num_symbols))

    def forward(self, x: Tensor, embedding: Tensor, classes: Tensor | None = None) -> Tensor:
        """(B, T, H) → (B, T, V), or (B, T, K) of K `classes` alone; `embedding` (V, H) is the target's."""
        weight = embedding if self.is_tied else self.weight
        if classes is None:
            return functional.linear(x, weight, self.bias)
        return functional.linear(x, weight[classes], self.bias[classes])
