"""Scaled dot-product attention: a plain form that keeps its weights, and a tiled one that never holds them.

Axes: B batch, N heads, n queries, S keys, K size of queries and keys, V size of values. Queries are the last n of S
positions where a mask is causal: query i sees keys ≤ S − n + i (bottom right).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from unrolled.reference.layer import BoolArray, FloatArray
from unrolled.reference.ops import masked_softmax_backward, masked_softmax_forward

__all__ = [
    "AttentionGradients",
    "Visible",
    "attention_backward",
    "attention_forward",
    "attention_weights",
    "tiled_attention_backward",
    "tiled_attention_forward",
]


class Visible(NamedTuple):
    """Which keys a query may see; without any field set, all.

    `keys` (B, S) is True for real keys. `is_causal`: none after the query's own position. `window` w: only the own
    position and the w − 1 before it, and, where it is not causal, the w − 1 after it.
    """

    keys: BoolArray | None = None
    is_causal: bool = False
    window: int | None = None

    def span(self, queries: slice, num_queries: int, num_keys: int) -> tuple[int, int]:
        """First key, and one past the last, that any of these queries may see by position."""
        first, last = queries.start + num_keys - num_queries, queries.stop - 1 + num_keys - num_queries
        begin, end = 0, num_keys
        if self.window is not None:
            begin, end = max(0, first - self.window + 1), min(end, last + self.window)
        return begin, min(end, last + 1) if self.is_causal else end

    def tile(self, queries: slice, keys: slice, num_queries: int, num_keys: int) -> BoolArray:
        """The mask of some queries and keys, broadcastable to (B, N, queries, keys)."""
        shift = num_keys - num_queries
        ahead = np.arange(keys.start, keys.stop) - np.arange(queries.start + shift, queries.stop + shift)[:, None]
        allowed = np.ones_like(ahead, dtype=np.bool_)
        if self.is_causal:
            allowed &= ahead <= 0
        if self.window is not None:
            allowed &= np.abs(ahead) < self.window
        return allowed if self.keys is None else allowed & self.keys[:, None, None, keys]

    def whole(self, num_queries: int, num_keys: int) -> BoolArray:
        """The mask of all queries and keys."""
        return self.tile(slice(0, num_queries), slice(0, num_keys), num_queries, num_keys)


class AttentionGradients(NamedTuple):
    """∂L/∂ of queries, keys and values."""

    d_query: FloatArray
    d_keys: FloatArray
    d_values: FloatArray


# --- plain -----------------------------------------------------------------------------------------------------------


class AttentionCache(NamedTuple):
    """What `attention_backward` needs."""

    query: FloatArray
    keys: FloatArray
    values: FloatArray
    weights: FloatArray


def attention_weights(query: FloatArray, keys: FloatArray, allowed: BoolArray) -> FloatArray:
    """``softmax_allowed(Q Kᵀ / √K)``: (B, N, n, S); rows sum to 1, or to 0 where nothing is allowed."""
    scores = query @ keys.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    return masked_softmax_forward(scores, allowed)[0]


def attention_forward(
    query: FloatArray, keys: FloatArray, values: FloatArray, allowed: BoolArray
) -> tuple[FloatArray, AttentionCache]:
    """``softmax_allowed(Q Kᵀ / √K) V`` (Vaswani et al. 2017, eq. 1).

    Entries of Q and K with zero mean and unit variance give products of variance K; divided by √K they do not saturate
    the softmax, whose Jacobian ``diag(p) − p pᵀ`` would go to 0.

    Parameters
    ----------
    query : (B, N, n, K) array
    keys : (B, N, S, K) array
    values : (B, N, S, V) array
    allowed : bool array that broadcasts to (B, N, n, S)
        True = may be attended to.

    Returns
    -------
    context : (B, N, n, V) array
        0 for queries that may see nothing.
    cache : AttentionCache
    """
    weights = attention_weights(query, keys, allowed)  # (1)
    return weights @ values, AttentionCache(query, keys, values, weights)  # (2)


def attention_backward(d_context: FloatArray, cache: AttentionCache) -> AttentionGradients:
    """Gradients of queries, keys and values."""
    query, keys, values, weights = cache
    d_weights = d_context @ values.swapaxes(-1, -2)  # (2)
    d_scores = masked_softmax_backward(d_weights, weights) / math.sqrt(query.shape[-1])  # (1)
    d_keys, d_values = d_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ d_context  # (1), (2)
    return AttentionGradients(d_scores @ keys, d_keys, d_values)


# --- tiled -----------------------------------------------------------------------------------------------------------


class TiledCache(NamedTuple):
    """What `tiled_attention_backward` needs: no weights, but ln of each query's softmax denominator (B, N, n, 1)."""

    query: FloatArray
    keys: FloatArray
    values: FloatArray
    visible: Visible
    block: int
    context: FloatArray
    log_total: FloatArray


def tiled_attention_forward(
    query: FloatArray, keys: FloatArray, values: FloatArray, visible: Visible, *, block: int = 128
) -> tuple[FloatArray, TiledCache]:
    """Twin of `attention_forward` that holds `block` × `block` of the weights at a time.

    Keys are read block by block. For each query the running maximum m, total ``Σ e^{s − m}`` and context
    ``Σ e^{s − m} v`` are kept, and rescaled by ``e^{m − m'}`` when the maximum grows (online softmax: Milakov &
    Gimelshein 2018, algorithm 3; Dao et al. 2022, algorithm 1). Blocks that `visible` hides by position are not
    computed: a window of w costs O(n · w).

    Parameters
    ----------
    query, keys, values : arrays as in `attention_forward`
    visible : Visible
    block : int

    Returns
    -------
    context : (B, N, n, V) array
    cache : TiledCache
    """
    context = np.empty((*query.shape[:3], values.shape[3]), query.dtype)
    log_total = np.empty((*query.shape[:3], 1), query.dtype)
    for rows in _blocks(0, query.shape[2], block):
        context[:, :, rows], log_total[:, :, rows] = _online_softmax(query, keys, values, visible, rows, block)
    return context, TiledCache(query, keys, values, visible, block, context, log_total)


def _online_softmax(
    query: FloatArray, keys: FloatArray, values: FloatArray, visible: Visible, rows: slice, block: int
) -> tuple[FloatArray, FloatArray]:
    """Context of a block of queries, and ln of their softmax denominators; +inf for queries that may see nothing."""
    shape = (*query.shape[:2], rows.stop - rows.start)
    top = np.full((*shape, 1), -np.inf, query.dtype)
    total = np.zeros((*shape, 1), query.dtype)
    context = np.zeros((*shape, values.shape[3]), query.dtype)
    for columns in _blocks(*visible.span(rows, query.shape[2], keys.shape[2]), block):
        scores = _scores(query, keys, visible, rows, columns)
        higher = np.maximum(top, scores.max(axis=-1, keepdims=True))
        shift = np.where(np.isfinite(higher), higher, 0.0)  # nothing visible so far: e^(−inf − 0) = 0
        weights, rescale = np.exp(scores - shift), np.exp(top - shift)
        total = total * rescale + weights.sum(axis=-1, keepdims=True)
        context = context * rescale + weights @ values[:, :, columns]
        top = higher
    is_seeing = total > 0.0
    log_total = np.where(is_seeing, top + np.log(np.where(is_seeing, total, 1.0)), np.inf)
    return context / np.where(is_seeing, total, 1.0), log_total


def tiled_attention_backward(d_context: FloatArray, cache: TiledCache) -> AttentionGradients:
    """Gradients of queries, keys and values; the weights are computed again, tile by tile.

    ``p = e^{s − log_total}``, ``d_s = p ⊙ (d_p − Σ_j p_j d_p_j)``, and the sum equals ``d_context · context``, which
    needs no weights (Dao et al. 2022, appendix B.2).
    """
    query, keys, values, visible, block, context, log_total = cache
    d_query, d_keys, d_values = np.zeros_like(query), np.zeros_like(keys), np.zeros_like(values)
    mean = (d_context * context).sum(axis=-1, keepdims=True)  # (B, N, n, 1)
    scale = 1.0 / math.sqrt(query.shape[-1])
    for rows in _blocks(0, query.shape[2], block):
        d_rows = d_context[:, :, rows]
        for columns in _blocks(*visible.span(rows, query.shape[2], keys.shape[2]), block):
            weights = np.exp(_scores(query, keys, visible, rows, columns) - log_total[:, :, rows])
            d_values[:, :, columns] += weights.swapaxes(-1, -2) @ d_rows
            d_weights = d_rows @ values[:, :, columns].swapaxes(-1, -2)
            d_scores = weights * (d_weights - mean[:, :, rows]) * scale
            d_query[:, :, rows] += d_scores @ keys[:, :, columns]
            d_keys[:, :, columns] += d_scores.swapaxes(-1, -2) @ query[:, :, rows]
    return AttentionGradients(d_query, d_keys, d_values)


def _scores(query: FloatArray, keys: FloatArray, visible: Visible, rows: slice, columns: slice) -> FloatArray:
    """``Q Kᵀ / √K`` of one tile, −inf where hidden."""
    scores = query[:, :, rows] @ keys[:, :, columns].swapaxes(-1, -2)
    scores *= 1.0 / math.sqrt(query.shape[-1])
    return np.where(visible.tile(rows, columns, query.shape[2], keys.shape[2]), scores, -np.inf)


def _blocks(begin: int, end: int, block: int) -> Iterator[slice]:
    for first in range(begin, end, block):
        yield slice(first, min(first + block, end))
