"""Multi-head attention: of a sequence to itself, with a cache of its past, and of a decoder to the memory.

Axes: B batch, R rows of a decoder, T or n queries, S keys, N heads, K head size, D = N·K.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unrolled import config
from unrolled.reference import ops
from unrolled.reference.attention import (
    TiledCache,
    Visible,
    attention_weights,
    tiled_attention_backward,
    tiled_attention_forward,
)
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, named, under
from unrolled.reference.layers import Linear
from unrolled.reference.positions import rotate_backward, rotate_forward

__all__ = ["CrossAttention", "CrossAttentionCache", "CrossMemoryCache", "KeysValues", "SelfAttention"]


class KeysValues(NamedTuple):
    """Keys and values of every head, (B, N, S, K) each."""

    keys: FloatArray
    values: FloatArray

    def grown(self, later: KeysValues) -> KeysValues:
        """These, followed by later positions; both stay as they are."""
        return KeysValues(*(np.concatenate(pair, axis=2) for pair in zip(self, later, strict=True)))


def _split(x: FloatArray, num_parts: int, num_heads: int) -> list[FloatArray]:
    """Parts of a joint projection, cut into heads: (B, T, P·N·K) → P of (B, N, T, K)."""
    B, T, _ = x.shape
    parts = x.reshape(B, T, num_parts, num_heads, -1).transpose(2, 0, 3, 1, 4)
    return list(parts)


def _join(parts: list[FloatArray]) -> FloatArray:
    """Undo `_split`: P of (B, N, T, K) → (B, T, P·N·K)."""
    B, _, T, _ = parts[0].shape
    return np.stack(parts).transpose(1, 3, 0, 2, 4).reshape(B, T, -1)


# --- self-attention --------------------------------------------------------------------------------------------------


class SelfAttentionCache(NamedTuple):
    """What `SelfAttention.backward` needs."""

    qkv: ops.LinearCache
    positions: IntArray
    attention: TiledCache
    out: ops.LinearCache

    @property
    def reached(self) -> KeysValues:
        """The past grown by the new positions."""
        return KeysValues(self.attention.keys, self.attention.values)


class SelfAttention:
    """``W_o [head_1; …; head_N] + b_o``, all heads from one product (Vaswani et al. 2017, section 3.2.2).

    Parameters
    ----------
    settings : config.Transformer
        Number of heads, and whether queries and keys are turned by their positions.
    parameters : dict
        Of the linear layers `qkv` (3D, D), stacked queries, keys, values, and `out` (D, D).
    """

    def __init__(self, settings: config.Transformer, parameters: Weights) -> None:
        self.parameters = parameters
        self.num_heads = settings.num_heads
        self.is_rotary = settings.positions == "rotary"
        self.qkv = Linear(under(parameters, "qkv"))
        self.out = Linear(under(parameters, "out"))

    def forward(
        self, x: FloatArray, positions: IntArray, visible: Visible, past: KeysValues | None = None
    ) -> tuple[FloatArray, SelfAttentionCache]:
        """Attend from each position of x to the past and to x.

        Parameters
        ----------
        x : (B, T, D) array
        positions : (B, T) int array
            Used by rotary heads alone.
        visible : Visible
            Over the keys of past and x together.
        past : KeysValues, optional

        Returns
        -------
        y : (B, T, D) array
        cache : SelfAttentionCache
            Its `reached` is the past grown by x.
        """
        joint, qkv = self.qkv.forward(x)  # (1)
        query, keys, values = _split(joint, 3, self.num_heads)
        if self.is_rotary:
            query, keys = rotate_forward(query, positions)[0], rotate_forward(keys, positions)[0]  # (2)
        reached = KeysValues(keys, values) if past is None else past.grown(KeysValues(keys, values))
        context, attention = tiled_attention_forward(query, *reached, visible)  # (3)
        y, out = self.out.forward(_join([context]))  # (4)
        return y, SelfAttentionCache(qkv, positions, attention, out)

    def backward(self, d_y: FloatArray, cache: SelfAttentionCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients; a past is taken as given and gets none."""
        d_context, out = self.out.backward(d_y, cache.out)  # (4)
        d_query, d_keys, d_values = tiled_attention_backward(_split(d_context, 1, self.num_heads)[0], cache.attention)
        T = d_query.shape[2]
        d_keys, d_values = d_keys[:, :, -T:], d_values[:, :, -T:]  # (3)
        if self.is_rotary:
            d_query, d_keys = rotate_backward(d_query, cache.positions), rotate_backward(d_keys, cache.positions)  # (2)
        d_x, qkv = self.qkv.backward(_join([d_query, d_keys, d_values]), cache.qkv)  # (1)
        return d_x, {**named("qkv", qkv), **named("out", out)}


# --- attention to the memory -----------------------------------------------------------------------------------------


class CrossMemoryCache(NamedTuple):
    """What `CrossAttention.prepare_backward` needs."""

    kv: ops.LinearCache
    positions: IntArray | None


class CrossAttentionCache(NamedTuple):
    """What `CrossAttention.backward` needs."""

    query: ops.LinearCache
    positions: IntArray | None
    attention: TiledCache
    out: ops.LinearCache


class CrossAttention:
    """Multi-head attention from decoder rows to the memory; the k rows of a source are folded into its query axis.

    Parameters
    ----------
    parameters : dict
        Of the linear layers `query` (D, D), `kv` (2D, M), stacked keys and values, and `out` (D, D).
    num_heads : int
    is_rotary : bool
        Whether queries and keys are turned by their positions, those of the target and of the source.
    """

    def __init__(self, parameters: Weights, *, num_heads: int, is_rotary: bool = False) -> None:
        self.parameters = parameters
        self.num_heads = num_heads
        self.is_rotary = is_rotary
        self.query = Linear(under(parameters, "query"))
        self.kv = Linear(under(parameters, "kv"))
        self.out = Linear(under(parameters, "out"))

    def prepare(self, output: FloatArray, positions: IntArray) -> tuple[KeysValues, CrossMemoryCache]:
        """Keys and values of the encoder's output (B, S, M) at positions (B, S), once a source."""
        joint, kv = self.kv.forward(output)  # (1)
        keys, values = _split(joint, 2, self.num_heads)
        if not self.is_rotary:
            return KeysValues(keys, values), CrossMemoryCache(kv, None)
        keys, turned = rotate_forward(keys, positions)  # (2)
        return KeysValues(keys, values), CrossMemoryCache(kv, turned)

    def prepare_backward(self, d_memory: KeysValues, cache: CrossMemoryCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂output and gradients of `kv`."""
        d_keys, d_values = d_memory
        if cache.positions is not None:
            d_keys = rotate_backward(d_keys, cache.positions)  # (2)
        d_output, found = self.kv.backward(_join([d_keys, d_values]), cache.kv)  # (1)
        return d_output, named("kv", found)

    def forward(
        self, x: FloatArray, memory: KeysValues, mask: BoolArray, positions: IntArray | None = None
    ) -> tuple[FloatArray, CrossAttentionCache]:
        """Attend from x (R, n, D), where rotary at positions (R, n), to the real positions (B, S) of the memory."""
        folded, query_cache = self.query.forward(x.reshape(len(mask), -1, x.shape[-1]))  # (1) (R, n, D) -> (B, k·n, D)
        (query,) = _split(folded, 1, self.num_heads)
        turned = None
        if self.is_rotary:
            assert positions is not None
            query, turned = rotate_forward(query, positions.reshape(len(mask), -1))  # (2)
        context, attention = tiled_attention_forward(query, *memory, Visible(keys=mask))  # (3)
        y, out = self.out.forward(_join([context]).reshape(x.shape))  # (4)
        return y, CrossAttentionCache(query_cache, turned, attention, out)

    def backward(self, d_y: FloatArray, cache: CrossAttentionCache) -> tuple[FloatArray, KeysValues, Gradients]:
        """∂L/∂x, ∂L/∂memory and parameter gradients."""
        d_context, out = self.out.backward(d_y, cache.out)  # (4)
        (d_heads,) = _split(d_context.reshape(cache.query.x.shape), 1, self.num_heads)
        d_query, d_keys, d_values = tiled_attention_backward(d_heads, cache.attention)  # (3)
        if cache.positions is not None:
            d_query = rotate_backward(d_query, cache.positions)  # (2)
        d_x, query = self.query.backward(_join([d_query]), cache.query)  # (1)
        return d_x.reshape(d_y.shape), KeysValues(d_keys, d_values), {**named("query", query), **named("out", out)}

    def weights(self, cache: CrossAttentionCache, num_rows: int) -> FloatArray:
        """The weights of a forward pass, which the pass itself never holds: (R, N, n, S)."""
        query, keys, _, visible, *_ = cache.attention
        weights = attention_weights(query, keys, visible.whole(query.shape[2], keys.shape[2]))  # (B, N, k·n, S)
        B, N, _, S = weights.shape
        return weights.reshape(B, N, num_rows // B, -1, S).swapaxes(1, 2).reshape(num_rows, N, -1, S)
