"""How a recurrent decoder compares its state with each source position, and what it makes of the comparison.

A score has two parts: `keys`, computed once a source, and `compare`, computed at each step; both come with their way
back. Axes: B sources, n queries, S source, H hidden, M memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled.reference import ops
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, Weights, named, under
from unrolled.reference.layers import Linear

__all__ = ["SCORES", "Additive", "Dot", "General", "Luong", "ScaledDot", "Score"]


class Score(Protocol):
    """``score(s, m)`` of decoder states s (B, n, H) and encoder outputs m (B, S, M)."""

    def keys(self, output: FloatArray) -> tuple[FloatArray, Any]:
        """What a source position is compared by: (B, S, M) → (B, S, H)."""

    def keys_backward(self, d_keys: FloatArray, cache: Any) -> tuple[FloatArray, Gradients]:
        """∂L/∂output and parameter gradients."""

    def compare(self, query: FloatArray, keys: FloatArray) -> tuple[FloatArray, Any]:
        """Scores (B, n, S)."""

    def compare_backward(self, d_scores: FloatArray, cache: Any) -> tuple[FloatArray, FloatArray, Gradients]:
        """∂L/∂query, ∂L/∂keys and parameter gradients."""


class DotCache(NamedTuple):
    """What `Dot.compare_backward` needs."""

    query: FloatArray
    keys: FloatArray


class Dot:
    """``score(s, m) = sᵀ m``; equal sizes only (Luong et al. 2015, eq. 8)."""

    def __init__(self, parameters: Weights) -> None:
        self.parameters = parameters

    def keys(self, output: FloatArray) -> tuple[FloatArray, Any]:
        """The output itself."""
        return output, None

    def keys_backward(self, d_keys: FloatArray, cache: Any) -> tuple[FloatArray, Gradients]:
        """∂L/∂output."""
        del cache
        return d_keys, {}

    def compare(self, query: FloatArray, keys: FloatArray) -> tuple[FloatArray, DotCache]:
        """Scores (B, n, S)."""
        return query @ keys.swapaxes(1, 2), DotCache(query, keys)

    def compare_backward(self, d_scores: FloatArray, cache: DotCache) -> tuple[FloatArray, FloatArray, Gradients]:
        """∂L/∂query, ∂L/∂keys, and no parameters."""
        return d_scores @ cache.keys, d_scores.swapaxes(1, 2) @ cache.query, {}


class ScaledDot(Dot):
    """``score(s, m) = sᵀ m / √H``; equal sizes only (Vaswani et al. 2017, eq. 1)."""

    def compare(self, query: FloatArray, keys: FloatArray) -> tuple[FloatArray, DotCache]:
        """Scores (B, n, S)."""
        return super().compare(query / math.sqrt(query.shape[-1]), keys)

    def compare_backward(self, d_scores: FloatArray, cache: DotCache) -> tuple[FloatArray, FloatArray, Gradients]:
        """∂L/∂query, ∂L/∂keys, and no parameters."""
        d_query, d_keys, gradients = super().compare_backward(d_scores, cache)
        return d_query / math.sqrt(d_query.shape[-1]), d_keys, gradients


class General(Dot):
    """``score(s, m) = sᵀ W m`` (Luong et al. 2015, eq. 8); parameter `key.weight` (H, M)."""

    def __init__(self, parameters: Weights) -> None:
        super().__init__(parameters)
        self.key = Linear(under(parameters, "key"))

    def keys(self, output: FloatArray) -> tuple[FloatArray, ops.LinearCache]:
        """``W m``."""
        return self.key.forward(output)

    def keys_backward(self, d_keys: FloatArray, cache: ops.LinearCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂output and the gradient of W."""
        d_output, found = self.key.backward(d_keys, cache)
        return d_output, named("key", found)


class AdditiveCache(NamedTuple):
    """What `Additive.compare_backward` needs."""

    query: ops.LinearCache
    joined: FloatArray


class Additive(General):
    """``score(s, m) = vᵀ tanh(W s + U m)`` (Bahdanau et al. 2014, appendix A.1.2).

    Luong's `concat`, ``vᵀ tanh(W [s; m])``, is the same function. Parameters: `query.weight` W (H, H), `key.weight` U
    (H, M), `v` (H,).
    """

    def __init__(self, parameters: Weights) -> None:
        super().__init__(parameters)
        self.query = Linear(under(parameters, "query"))
        self.v = parameters["v"]

    def compare(self, query: FloatArray, keys: FloatArray) -> tuple[FloatArray, AdditiveCache]:  # type: ignore[override]
        """Scores (B, n, S)."""
        projected, query_cache = self.query.forward(query)  # (1)
        joined: FloatArray = np.tanh(projected[:, :, None] + keys[:, None])  # (2) (B, n, S, H)
        return joined @ self.v, AdditiveCache(query_cache, joined)  # (3)

    def compare_backward(  # type: ignore[override]
        self, d_scores: FloatArray, cache: AdditiveCache
    ) -> tuple[FloatArray, FloatArray, Gradients]:
        """∂L/∂query, ∂L/∂keys, and the gradients of W and v."""
        d_v = np.tensordot(d_scores, cache.joined, axes=3)  # (3)
        d_joined = d_scores[..., None] * self.v * (1.0 - cache.joined * cache.joined)  # (3), (2)
        d_query, found = self.query.backward(d_joined.sum(axis=2), cache.query)  # (2), (1)
        return d_query, d_joined.sum(axis=1), {"v": d_v, **named("query", found)}


SCORES: dict[str, type[Dot]] = {"dot": Dot, "scaled_dot": ScaledDot, "general": General, "additive": Additive}


# --- wiring ----------------------------------------------------------------------------------------------------------


class LuongCache(NamedTuple):
    """What `Luong.backward` needs."""

    compared: Any
    weights: FloatArray
    output: FloatArray
    combined: ops.LinearCache
    attended: FloatArray


class Luong:
    """Attention after the cell: ``s̃ = tanh(W_c [context; s] + b)`` (Luong et al. 2015, eq. 5).

    No step's input depends on another step's context, so all steps are computed at once.

    Parameters
    ----------
    score : Score
    combine : dict
        Weights of the linear layer (H, M + H).
    """

    def __init__(self, score: Score, combine: Weights) -> None:
        self.score = score
        self.combine = Linear(combine)

    def forward(
        self, hidden: FloatArray, output: FloatArray, keys: FloatArray, mask: BoolArray
    ) -> tuple[tuple[FloatArray, FloatArray], LuongCache]:
        """Attend from states (R, n, H), R = B·k, to outputs (B, S, M) with keys (B, S, H) and mask (B, S).

        Returns
        -------
        (attended, weights) : (R, n, H) and (R, n, S) arrays
        cache : LuongCache
        """
        query = hidden.reshape(len(output), -1, hidden.shape[-1])  # (R, n, H) -> (B, k·n, H)
        scores, compared = self.score.compare(query, keys)  # (1)
        weights, _ = ops.masked_softmax_forward(scores, mask[:, None])  # (2)
        context = weights @ output  # (3)
        y, combined = self.combine.forward(np.concatenate([context, query], axis=-1))  # (4)
        attended, _ = ops.tanh_forward(y)  # (5)
        shape = hidden.shape[:2]
        results = attended.reshape(hidden.shape), weights.reshape(*shape, -1)
        return results, LuongCache(compared, weights, output, combined, attended)

    def backward(
        self, d_attended: FloatArray, cache: LuongCache
    ) -> tuple[FloatArray, FloatArray, FloatArray, Gradients]:
        """∂L/∂hidden, ∂L/∂output (through the context alone), ∂L/∂keys, and parameter gradients."""
        d_y = ops.tanh_backward(d_attended.reshape(cache.attended.shape), cache.attended)  # (5)
        d_joined, combine = self.combine.backward(d_y, cache.combined)  # (4)
        M = cache.output.shape[-1]
        d_context, d_query = d_joined[..., :M], d_joined[..., M:]  # (4)
        d_output = cache.weights.swapaxes(1, 2) @ d_context  # (3)
        d_weights = d_context @ cache.output.swapaxes(1, 2)  # (3)
        d_scores = ops.masked_softmax_backward(d_weights, cache.weights)  # (2)
        d_compared, d_keys, score = self.score.compare_backward(d_scores, cache.compared)  # (1)
        d_hidden = (d_query + d_compared).reshape(d_attended.shape)
        return d_hidden, d_output, d_keys, {**named("attention", score), **named("combine", combine)}
