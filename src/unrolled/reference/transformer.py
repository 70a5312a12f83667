"""The layers of a Transformer, and what its encoder and decoder share at their two ends (Vaswani et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unrolled import config
from unrolled.errors import ShapeError
from unrolled.reference import ops
from unrolled.reference.attention import Visible
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, named, under
from unrolled.reference.layers import Embedding, FeedForward, LayerNorm
from unrolled.reference.multihead import CrossAttention, KeysValues, SelfAttention
from unrolled.reference.positions import sinusoids

__all__ = ["DecoderLayer", "DecoderLayerCache", "EncoderLayer", "EncoderLayerCache", "Ends"]


# --- sublayers -------------------------------------------------------------------------------------------------------


class ResidualCache(NamedTuple):
    """What `Residual.backward` needs."""

    norm: ops.LayerNormCache
    inner: Any
    dropped: FloatArray | None


class Residual:
    """A sublayer f in the stream: ``x + f(norm(x))`` (pre; Xiong et al. 2020), or ``norm(x + f(x))`` (post; 2017).

    Parameters
    ----------
    settings : config.Transformer
    norm : dict
        Weights of the layer norm.
    """

    def __init__(self, settings: config.Transformer, norm: Weights) -> None:
        self.is_pre = settings.norm == "pre"
        self.dropout = settings.dropout
        self.norm = LayerNorm(norm)

    def forward(
        self,
        x: FloatArray,
        sublayer: Callable[[FloatArray], tuple[FloatArray, Any]],
        rng: np.random.Generator | None = None,
    ) -> tuple[FloatArray, ResidualCache]:
        """(B, T, D) → (B, T, D)."""
        y, norm = self.norm.forward(x) if self.is_pre else (x, None)  # (1)
        y, inner = sublayer(y)  # (2)
        y, dropped = ops.dropout_forward(y, self.dropout, rng)  # (3)
        x = x + y
        if norm is None:
            x, norm = self.norm.forward(x)  # (4)
        return x, ResidualCache(norm, inner, dropped)

    def backward(
        self, d_x: FloatArray, sublayer: Callable[[FloatArray, Any], tuple[Any, ...]], cache: ResidualCache
    ) -> tuple[Any, ...]:
        """∂L/∂x, gradients of the norm, and whatever the sublayer's backward pass returns after its own ∂L/∂x."""
        gradients: Gradients = {}
        if not self.is_pre:
            d_x, gradients = self.norm.backward(d_x, cache.norm)  # (4)
        d_y = ops.dropout_backward(d_x, cache.dropped)  # (3)
        d_y, *others = sublayer(d_y, cache.inner)  # (2)
        if self.is_pre:
            d_y, gradients = self.norm.backward(d_y, cache.norm)  # (1)
        return d_x + d_y, gradients, *others


# --- layers ----------------------------------------------------------------------------------------------------------


class EncoderLayerCache(NamedTuple):
    """What `EncoderLayer.backward` needs."""

    attention: ResidualCache
    ff: ResidualCache


class EncoderLayer:
    """Self-attention, then feed-forward."""

    def __init__(self, settings: config.TransformerEncoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.residual1 = Residual(settings, under(parameters, "norm1"))
        self.attention = SelfAttention(settings, under(parameters, "attention"))
        self.residual2 = Residual(settings, under(parameters, "norm2"))
        self.ff = FeedForward(settings, under(parameters, "ff"))

    def forward(
        self, x: FloatArray, positions: IntArray, visible: Visible, rng: np.random.Generator | None = None
    ) -> tuple[FloatArray, EncoderLayerCache]:
        """(B, S, D) → (B, S, D); positions (B, S)."""
        x, attention = self.residual1.forward(x, lambda y: self.attention.forward(y, positions, visible), rng)
        x, ff = self.residual2.forward(x, lambda y: self.ff.forward(y, rng), rng)
        return x, EncoderLayerCache(attention, ff)

    def backward(self, d_x: FloatArray, cache: EncoderLayerCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        d_x, norm2, ff = self.residual2.backward(d_x, self.ff.backward, cache.ff)
        d_x, norm1, attention = self.residual1.backward(d_x, self.attention.backward, cache.attention)
        gradients = {**named("norm1", norm1), **named("attention", attention)}
        return d_x, {**gradients, **named("norm2", norm2), **named("ff", ff)}


class DecoderLayerCache(NamedTuple):
    """What `DecoderLayer.backward` needs."""

    attention: ResidualCache
    cross: ResidualCache | None
    ff: ResidualCache


class DecoderLayer:
    """Self-attention over the past, attention to the memory if there are weights for it, feed-forward."""

    def __init__(self, settings: config.TransformerDecoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.residual1 = Residual(settings, under(parameters, "norm1"))
        self.attention = SelfAttention(settings, under(parameters, "attention"))
        if "cross.out.weight" in parameters:
            self.residual2 = Residual(settings, under(parameters, "norm2"))
            self.cross = CrossAttention(
                under(parameters, "cross"), num_heads=settings.num_heads, is_rotary=settings.positions == "rotary"
            )
        self.residual3 = Residual(settings, under(parameters, "norm3"))
        self.ff = FeedForward(settings, under(parameters, "ff"))

    def forward(
        self,
        x: FloatArray,
        positions: IntArray,
        visible: Visible,
        past: KeysValues,
        *,
        memory: tuple[KeysValues, BoolArray] | None,
        rng: np.random.Generator | None = None,
    ) -> tuple[FloatArray, DecoderLayerCache]:
        """(R, n, D) → (R, n, D); ``cache.attention.inner.reached`` is the past grown by n.

        `memory` is this layer's keys and values of the source, and which of them are real.
        """
        x, attention = self.residual1.forward(x, lambda y: self.attention.forward(y, positions, visible, past), rng)
        attended = None
        if memory is not None:
            x, attended = self.residual2.forward(x, lambda y: self.cross.forward(y, *memory, positions), rng)
        x, ff = self.residual3.forward(x, lambda y: self.ff.forward(y, rng), rng)
        return x, DecoderLayerCache(attention, attended, ff)

    def backward(self, d_x: FloatArray, cache: DecoderLayerCache) -> tuple[FloatArray, KeysValues | None, Gradients]:
        """∂L/∂x, ∂L/∂memory and parameter gradients; the past is taken as given."""
        d_x, norm3, ff = self.residual3.backward(d_x, self.ff.backward, cache.ff)
        gradients = {**named("norm3", norm3), **named("ff", ff)}
        d_memory = None
        if cache.cross is not None:
            d_x, norm2, d_memory, cross = self.residual2.backward(d_x, self.cross.backward, cache.cross)
            gradients.update({**named("norm2", norm2), **named("cross", cross)})
        d_x, norm1, attention = self.residual1.backward(d_x, self.attention.backward, cache.attention)
        return d_x, d_memory, {**gradients, **named("norm1", norm1), **named("attention", attention)}


# --- the two ends ----------------------------------------------------------------------------------------------------


class EntranceCache(NamedTuple):
    """What `Ends.enter_backward` needs."""

    embedding: Any
    positions: IntArray
    is_feature: BoolArray | None
    dropped: FloatArray | None


class Ends:
    """Symbols with positions below the layers, and, where norms come first, a last norm above them.

    Parameters
    ----------
    settings : config.Transformer
    parameters : dict
        `embedding.weight`; `positions.weight` where positions are learned; `feature_type` where there are features;
        `norm.weight` and `norm.bias` where norms come first.
    """

    def __init__(self, settings: config.Transformer, parameters: Weights) -> None:
        self.parameters = parameters
        self.settings = settings
        self.embedding = Embedding(under(parameters, "embedding"))
        self.norm = LayerNorm(under(parameters, "norm")) if settings.norm == "pre" else None

    def enter(
        self, ids: IntArray, positions: IntArray, is_feature: BoolArray | None, rng: np.random.Generator | None
    ) -> tuple[FloatArray, EntranceCache]:
        """Embedded ids (B, T), marked with their positions (B, T), or as features where `is_feature` (B, T) is True.

        Raises
        ------
        ShapeError
            Where the table of learned positions ends.
        """
        x, embedding = self.embedding.forward(ids)  # (1)
        marks = self._marks(positions, x.dtype)
        if is_feature is not None:
            marks[is_feature] = self.parameters["feature_type"]
        x, dropped = ops.dropout_forward(x + marks, self.settings.dropout, rng)  # (2), (3)
        return x, EntranceCache(embedding, positions, is_feature, dropped)

    def enter_backward(self, d_x: FloatArray, cache: EntranceCache) -> Gradients:
        """Parameter gradients."""
        d_x = ops.dropout_backward(d_x, cache.dropped)  # (3)
        gradients = named("embedding", self.embedding.backward(d_x, cache.embedding))  # (1)
        d_marks = d_x  # (2)
        if cache.is_feature is not None:
            gradients["feature_type"] = d_marks[cache.is_feature].sum(axis=0)
            d_marks = np.where(cache.is_feature[..., None], 0.0, d_marks)
        if self.settings.positions == "learned":
            table = ops.EmbeddingCache(cache.positions, self.parameters["positions.weight"])
            gradients["positions.weight"] = ops.embedding_backward(d_marks, table)
        return gradients

    def _marks(self, positions: IntArray, dtype: Any) -> FloatArray:
        """What is added to the symbols at these positions, (B, T, D); zero where positions are rotary."""
        width = self.settings.d_model
        if self.settings.positions == "rotary":
            return np.zeros((*positions.shape, width), dtype)
        if self.settings.positions == "sinusoidal":
            return sinusoids(positions, width).astype(dtype)
        last, limit = int(positions.max()), self.settings.max_positions
        if last >= limit:
            raise ShapeError(f"a sequence of {last + 1} symbols, but positions=learned end at {limit} (max_positions)")
        return self.parameters["positions.weight"][positions]

    def leave(self, x: FloatArray) -> tuple[FloatArray, ops.LayerNormCache | None]:
        """The stream at the top, (B, T, D)."""
        return (x, None) if self.norm is None else self.norm.forward(x)

    def leave_backward(self, d_x: FloatArray, cache: ops.LayerNormCache | None) -> tuple[FloatArray, Gradients]:
        """∂L/∂x and parameter gradients."""
        if self.norm is None or cache is None:
            return d_x, {}
        d_x, found = self.norm.backward(d_x, cache)
        return d_x, named("norm", found)
