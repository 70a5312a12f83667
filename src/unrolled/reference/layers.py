"""Layers of one operation, and the feed-forward block; each is built from its weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unrolled.reference import ops
from unrolled.reference.layer import FloatArray, Gradients, IntArray, Weights, named, under

__all__ = ["Embedding", "FeedForward", "LayerNorm", "Linear"]


class Linear:
    """``y = x Wᵀ + b``; parameters `weight` (O, I), and `bias` (O,) if there is one."""

    def __init__(self, parameters: Weights) -> None:
        self.parameters = parameters

    def forward(self, x: FloatArray) -> tuple[FloatArray, ops.LinearCache]:
        """(..., I) → (..., O)."""
        return ops.linear_forward(x, self.parameters["weight"], self.parameters.get("bias"))

    def backward(self, d_y: FloatArray, cache: ops.LinearCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        d_x, d_weight, d_bias = ops.linear_backward(d_y, cache)
        gradients = {"weight": d_weight, "bias": d_bias}
        return d_x, {name: gradients[name] for name in self.parameters}


class Embedding:
    """``y = W[ids]``, with dropout on the table: a symbol loses the same entries wherever it stands in the batch.

    Parameters
    ----------
    parameters : dict
        `weight` (V, E).
    dropout : float
        Rate, in effect while a generator is passed.
    """

    def __init__(self, parameters: Weights, *, dropout: float = 0.0) -> None:
        self.parameters = parameters
        self.dropout = dropout

    def forward(
        self, ids: IntArray, rng: np.random.Generator | None = None
    ) -> tuple[FloatArray, tuple[ops.EmbeddingCache, FloatArray | None]]:
        """(...) ids → (..., E)."""
        table, dropped = ops.dropout_forward(self.parameters["weight"], self.dropout, rng)
        y, cache = ops.embedding_forward(ids, table)
        return y, (cache, dropped)

    def backward(self, d_y: FloatArray, cache: tuple[ops.EmbeddingCache, FloatArray | None]) -> Gradients:
        """Parameter gradients."""
        return {"weight": ops.dropout_backward(ops.embedding_backward(d_y, cache[0]), cache[1])}


class LayerNorm:
    """``y = w ⊙ x̂ + b``; parameters `weight` and `bias` (D,)."""

    def __init__(self, parameters: Weights) -> None:
        self.parameters = parameters

    def forward(self, x: FloatArray) -> tuple[FloatArray, ops.LayerNormCache]:
        """(..., D) → (..., D)."""
        return ops.layer_norm_forward(x, self.parameters["weight"], self.parameters["bias"])

    def backward(self, d_y: FloatArray, cache: ops.LayerNormCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        d_x, d_weight, d_bias = ops.layer_norm_backward(d_y, cache)
        return d_x, {"weight": d_weight, "bias": d_bias}


class FeedForwardCache(NamedTuple):
    """What `FeedForward.backward` needs."""

    up: ops.LinearCache
    active: FloatArray
    dropped: FloatArray | None
    down: ops.LinearCache


class FeedForward:
    """``W_2 relu(W_1 x + b_1) + b_2`` (Vaswani et al. 2017, eq. 2), with dropout after the relu.

    Parameters
    ----------
    parameters : dict
        Of the linear layers `up` and `down`.
    dropout : float
        Rate, in effect while a generator is passed.
    """

    def __init__(self, parameters: Weights, *, dropout: float = 0.0) -> None:
        self.parameters = parameters
        self.dropout = dropout
        self.up = Linear(under(parameters, "up"))
        self.down = Linear(under(parameters, "down"))

    def forward(self, x: FloatArray, rng: np.random.Generator | None = None) -> tuple[FloatArray, FeedForwardCache]:
        """(..., D) → (..., D)."""
        y, up = self.up.forward(x)  # (1)
        y, active = ops.relu_forward(y)  # (2)
        y, dropped = ops.dropout_forward(y, self.dropout, rng)  # (3)
        y, down = self.down.forward(y)  # (4)
        return y, FeedForwardCache(up, active, dropped, down)

    def backward(self, d_y: FloatArray, cache: FeedForwardCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        d_y, down = self.down.backward(d_y, cache.down)  # (4)
        d_y = ops.dropout_backward(d_y, cache.dropped)  # (3)
        d_y = ops.relu_backward(d_y, cache.active)  # (2)
        d_x, up = self.up.backward(d_y, cache.up)  # (1)
        return d_x, {**named("up", up), **named("down", down)}
