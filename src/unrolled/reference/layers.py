"""Layers of one operation, and the feed-forward block; each is built from its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unrolled import config
from unrolled.reference import ops
from unrolled.reference.layer import FloatArray, Gradients, IntArray, Weights, named, under

__all__ = ["Embedding", "FeedForward", "LayerNorm", "Linear", "Output"]


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


class Output:
    """``logits = W x + b``; a tied layer has no W of its own and uses the embedding's (Press & Wolf 2017).

    Parameters
    ----------
    parameters : dict
        `output.bias`, and `output.weight` or `embedding.weight` (V, H); gradients have the same names.
    """

    def __init__(self, parameters: Weights) -> None:
        self.parameters = parameters
        self.weight = "output.weight" if "output.weight" in parameters else "embedding.weight"

    def forward(self, x: FloatArray) -> tuple[FloatArray, ops.LinearCache]:
        """(..., H) → (..., V)."""
        return ops.linear_forward(x, self.parameters[self.weight], self.parameters["output.bias"])

    def backward(self, d_logits: FloatArray, cache: ops.LinearCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        d_x, d_weight, d_bias = ops.linear_backward(d_logits, cache)
        return d_x, {self.weight: d_weight, "output.bias": d_bias}


class FeedForwardCache(NamedTuple):
    """What `FeedForward.backward` needs."""

    up: ops.LinearCache
    gate: ops.LinearCache | None
    active: Any
    factors: tuple[FloatArray, FloatArray] | None
    dropped: FloatArray | None
    down: ops.LinearCache


class FeedForward:
    """``W_2 f(W_1 x + b_1) + b_2`` (Vaswani et al. 2017, eq. 2), with dropout before W_2.

    f is ReLU or GELU; `swiglu` is ``W_2 (silu(W_g x + b_g) ⊙ (W_1 x + b_1)) + b_2`` (Shazeer 2020, eq. 6).

    Parameters
    ----------
    settings : config.Transformer
    parameters : dict
        Of the linear layers `up`, `down`, and for swiglu `gate`.
    """

    def __init__(self, settings: config.Transformer, parameters: Weights) -> None:
        self.parameters = parameters
        self.dropout = settings.dropout
        self.activation, self.activation_backward = _ACTIVATIONS[settings.activation]
        self.gate = Linear(under(parameters, "gate")) if settings.activation == "swiglu" else None
        self.up = Linear(under(parameters, "up"))
        self.down = Linear(under(parameters, "down"))

    def forward(self, x: FloatArray, rng: np.random.Generator | None = None) -> tuple[FloatArray, FeedForwardCache]:
        """(..., D) → (..., D)."""
        hidden, up = self.up.forward(x)  # (1)
        gate, factors = None, None
        if self.gate is None:
            y, active = self.activation(hidden)  # (2)
        else:
            opened, gate = self.gate.forward(x)  # (3)
            opened, active = self.activation(opened)  # (4)
            y, factors = opened * hidden, (opened, hidden)  # (5)
        y, dropped = ops.dropout_forward(y, self.dropout, rng)  # (6)
        y, down = self.down.forward(y)  # (7)
        return y, FeedForwardCache(up, gate, active, factors, dropped, down)

    def backward(self, d_y: FloatArray, cache: FeedForwardCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        d_y, down = self.down.backward(d_y, cache.down)  # (7)
        d_y = ops.dropout_backward(d_y, cache.dropped)  # (6)
        if self.gate is None or cache.gate is None or cache.factors is None:
            d_x, up = self.up.backward(self.activation_backward(d_y, cache.active), cache.up)  # (2), (1)
            return d_x, {**named("up", up), **named("down", down)}
        opened, hidden = cache.factors
        d_opened = self.activation_backward(d_y * hidden, cache.active)  # (5), (4)
        d_from_gate, gate = self.gate.backward(d_opened, cache.gate)  # (3)
        d_x, up = self.up.backward(d_y * opened, cache.up)  # (5), (1)
        return d_x + d_from_gate, {**named("gate", gate), **named("up", up), **named("down", down)}


_ACTIVATIONS: dict[str, tuple[Callable[[FloatArray], Any], Callable[[FloatArray, Any], FloatArray]]] = {
    "relu": (ops.relu_forward, ops.relu_backward),
    "gelu": (ops.gelu_forward, ops.gelu_backward),
    "swiglu": (ops.silu_forward, ops.silu_backward),
}
