"""The layers of a Transformer, pre-norm: each sublayer reads a norm of the stream and is added to it.

Vaswani et al. 2017, with the norms first as in Xiong et al. 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unrolled import config
from unrolled.reference import ops
from unrolled.reference.attention import Visible
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, named, under
from unrolled.reference.layers import FeedForward, FeedForwardCache, LayerNorm
from unrolled.reference.multihead import (
    CrossAttention,
    CrossAttentionCache,
    KeysValues,
    SelfAttention,
    SelfAttentionCache,
)

__all__ = ["DecoderLayer", "DecoderLayerCache", "EncoderLayer", "EncoderLayerCache"]


class EncoderLayerCache(NamedTuple):
    """What `EncoderLayer.backward` needs."""

    norm1: ops.LayerNormCache
    attention: SelfAttentionCache
    dropped1: FloatArray | None
    norm2: ops.LayerNormCache
    ff: FeedForwardCache
    dropped2: FloatArray | None


class EncoderLayer:
    """``x += attention(norm(x))``, ``x += feed_forward(norm(x))``."""

    def __init__(self, settings: config.TransformerEncoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.dropout = settings.dropout
        self.norm1 = LayerNorm(under(parameters, "norm1"))
        self.attention = SelfAttention(
            under(parameters, "attention"), num_heads=settings.num_heads, is_rotary=settings.positions == "rotary"
        )
        self.norm2 = LayerNorm(under(parameters, "norm2"))
        self.ff = FeedForward(under(parameters, "ff"), dropout=settings.dropout)

    def forward(
        self, x: FloatArray, positions: IntArray, mask: BoolArray, rng: np.random.Generator | None = None
    ) -> tuple[FloatArray, EncoderLayerCache]:
        """(B, S, D) → (B, S, D); positions (B, S); mask (B, S) of real keys."""
        y, norm1 = self.norm1.forward(x)  # (1)
        (y, _), attention = self.attention.forward(y, positions, Visible(keys=mask))  # (2)
        y, dropped1 = ops.dropout_forward(y, self.dropout, rng)  # (3)
        x = x + y
        y, norm2 = self.norm2.forward(x)  # (4)
        y, ff = self.ff.forward(y, rng)  # (5)
        y, dropped2 = ops.dropout_forward(y, self.dropout, rng)  # (6)
        return x + y, EncoderLayerCache(norm1, attention, dropped1, norm2, ff, dropped2)

    def backward(self, d_x: FloatArray, cache: EncoderLayerCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        d_y = ops.dropout_backward(d_x, cache.dropped2)  # (6)
        d_y, ff = self.ff.backward(d_y, cache.ff)  # (5)
        d_y, norm2 = self.norm2.backward(d_y, cache.norm2)  # (4)
        d_x = d_x + d_y
        d_y = ops.dropout_backward(d_x, cache.dropped1)  # (3)
        d_y, attention = self.attention.backward(d_y, cache.attention)  # (2)
        d_y, norm1 = self.norm1.backward(d_y, cache.norm1)  # (1)
        gradients = {**named("norm1", norm1), **named("attention", attention)}
        return d_x + d_y, {**gradients, **named("norm2", norm2), **named("ff", ff)}


class DecoderLayerCache(NamedTuple):
    """What `DecoderLayer.backward` needs."""

    norm1: ops.LayerNormCache
    attention: SelfAttentionCache
    dropped1: FloatArray | None
    norm2: ops.LayerNormCache
    cross: CrossAttentionCache
    dropped2: FloatArray | None
    norm3: ops.LayerNormCache
    ff: FeedForwardCache
    dropped3: FloatArray | None


class DecoderLayer:
    """Self-attention over the past, attention to the memory, feed-forward; each after a norm and added to x."""

    def __init__(self, settings: config.TransformerDecoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.dropout = settings.dropout
        self.norm1 = LayerNorm(under(parameters, "norm1"))
        self.attention = SelfAttention(
            under(parameters, "attention"), num_heads=settings.num_heads, is_rotary=settings.positions == "rotary"
        )
        self.norm2 = LayerNorm(under(parameters, "norm2"))
        self.cross = CrossAttention(under(parameters, "cross"), num_heads=settings.num_heads)
        self.norm3 = LayerNorm(under(parameters, "norm3"))
        self.ff = FeedForward(under(parameters, "ff"), dropout=settings.dropout)

    def forward(
        self,
        x: FloatArray,
        positions: IntArray,
        visible: Visible,
        past: KeysValues,
        *,
        memory: KeysValues,
        memory_mask: BoolArray,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, KeysValues], DecoderLayerCache]:
        """(R, n, D) → (R, n, D), and the past grown by n."""
        y, norm1 = self.norm1.forward(x)  # (1)
        (y, reached), attention = self.attention.forward(y, positions, visible, past)  # (2)
        y, dropped1 = ops.dropout_forward(y, self.dropout, rng)  # (3)
        x = x + y
        y, norm2 = self.norm2.forward(x)  # (4)
        y, cross = self.cross.forward(y, memory, memory_mask)  # (5)
        y, dropped2 = ops.dropout_forward(y, self.dropout, rng)  # (6)
        x = x + y
        y, norm3 = self.norm3.forward(x)  # (7)
        y, ff = self.ff.forward(y, rng)  # (8)
        y, dropped3 = ops.dropout_forward(y, self.dropout, rng)  # (9)
        cache = DecoderLayerCache(norm1, attention, dropped1, norm2, cross, dropped2, norm3, ff, dropped3)
        return (x + y, reached), cache

    def backward(self, d_x: FloatArray, cache: DecoderLayerCache) -> tuple[FloatArray, KeysValues, Gradients]:
        """∂L/∂x, ∂L/∂memory and parameter gradients; the past is taken as given."""
        d_y = ops.dropout_backward(d_x, cache.dropped3)  # (9)
        d_y, ff = self.ff.backward(d_y, cache.ff)  # (8)
        d_y, norm3 = self.norm3.backward(d_y, cache.norm3)  # (7)
        d_x = d_x + d_y
        d_y = ops.dropout_backward(d_x, cache.dropped2)  # (6)
        d_y, d_memory, cross = self.cross.backward(d_y, cache.cross)  # (5)
        d_y, norm2 = self.norm2.backward(d_y, cache.norm2)  # (4)
        d_x = d_x + d_y
        d_y = ops.dropout_backward(d_x, cache.dropped1)  # (3)
        d_y, attention = self.attention.backward(d_y, cache.attention)  # (2)
        d_y, norm1 = self.norm1.backward(d_y, cache.norm1)  # (1)
        gradients = {**named("norm1", norm1), **named("attention", attention), **named("norm2", norm2)}
        return d_x + d_y, d_memory, {**gradients, **named("cross", cross), **named("norm3", norm3), **named("ff", ff)}
