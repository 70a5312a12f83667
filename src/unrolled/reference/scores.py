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

__all__ = ["SCORES", "Additive", "Dot", "General", "ScaledDot", "Score", "attend_backward", "attend_forward"]


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


# --- weights and context ---------------------------------------------------------------------------------------------


class AttendCache(NamedTuple):
    """What `attend_backward` needs."""

    compared: Any
    weights: FloatArray
    output: FloatArray


def attend_forward(
    score: Score, query: FloatArray, output: FloatArray, keys: FloatArray, mask: BoolArray
) -> tuple[tuple[FloatArray, FloatArray], AttendCache]:
    """``α = softmax_allowed(score(s, m))``, ``context = Σ_j α_j m_j``.

    Parameters
    ----------
    score : Score
    query : (R, n, H) array
        Rows are sources × k, source-major; the k rows of a source are folded into its query axis.
    output : (B, S, M) array
    keys : (B, S, H) array
        From ``score.keys(output)``.
    mask : (B, S) bool array

    Returns
    -------
    (context, weights) : (R, n, M) and (R, n, S) arrays
    cache : AttendCache
    """
    R, n, H = query.shape
    scores, compared = score.compare(query.reshape(len(output), -1, H), keys)  # (1) (R, n, H) -> (B, k·n, H)
    weights, _ = ops.masked_softmax_forward(scores, mask[:, None])  # (2)
    context = weights @ output  # (3)
    return (context.reshape(R, n, -1), weights.reshape(R, n, -1)), AttendCache(compared, weights, output)


def attend_backward(
    score: Score, d_context: FloatArray, cache: AttendCache
) -> tuple[FloatArray, FloatArray, FloatArray, Gradients]:
    """∂L/∂query, ∂L/∂output (through the context alone), ∂L/∂keys, and gradients of the score's parameters."""
    R, n, M = d_context.shape
    d_context = d_context.reshape(len(cache.output), -1, M)  # (R, n, M) -> (B, k·n, M)
    d_output = cache.weights.swapaxes(1, 2) @ d_context  # (3)
    d_weights = d_context @ cache.output.swapaxes(1, 2)  # (3)
    d_scores = ops.masked_softmax_backward(d_weights, cache.weights)  # (2)
    d_query, d_keys, gradients = score.compare_backward(d_scores, cache.compared)  # (1)
    return d_query.reshape(R, n, -1), d_output, d_keys, gradients
