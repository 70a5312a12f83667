"""Gated convolutions: encoder and decoder (Dauphin et al. 2017; Gehring et al. 2017).

A layer multiplies k positions side by side, ``[a; g] = W [x_{t−d}; x_t; x_{t+d}] + b``, opens one half by the other,
``y = a ⊙ σ(g)`` (Dauphin et al. 2017, eq. 1), and adds its input at the variance of one, ``√½ (x + y)`` (Gehring et al.
2017, section 3.5). `unrolled.models.convolution` tells where this deviates from the papers.

Axes: B batch, R rows of a decoder, n positions, C channels, k positions that a layer reads, d dilation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np

from unrolled import config
from unrolled.parameters import Sizes
from unrolled.reference import ops
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, accumulate, named, under
from unrolled.reference.layered import LayeredDecoder, LayeredMemory
from unrolled.reference.layers import Embedding, Linear, Output
from unrolled.reference.multihead import CrossAttention, CrossAttentionCache, KeysValues
from unrolled.reference.states import mapped, selected
from unrolled.reference.symbol_encoder import SymbolEncoder

__all__ = ["ConvolutionDecoder", "ConvolutionEncoder", "ConvolutionLayer", "ConvolutionLayers", "ConvolutionState"]

_HALF_VARIANCE = math.sqrt(0.5)


# --- one layer -------------------------------------------------------------------------------------------------------


class ConvolutionCache(NamedTuple):
    """What `ConvolutionLayer.backward` needs."""

    conv: ops.LinearCache
    gated: ops.GLUCache


class ConvolutionLayer:
    """One gated convolution; a decoder's layer also holds its attention to the memory.

    Parameters
    ----------
    parameters : dict
        Of the linear layer `conv` (2C, k·C), and of `cross` where there is a memory.
    kernel_size, dilation : int
        k and d.
    """

    def __init__(self, parameters: Weights, *, kernel_size: int, dilation: int) -> None:
        self.parameters = parameters
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.reach = (kernel_size - 1) * dilation
        self.conv = Linear(under(parameters, "conv"))
        if "cross.out.weight" in parameters:
            self.cross = CrossAttention(under(parameters, "cross"), num_heads=1)

    def forward(self, x: FloatArray, around: FloatArray) -> tuple[FloatArray, ConvolutionCache]:
        """(B, n, C) → (B, n, C), from x with what stands around it: `reach` more positions (B, n + reach, C)."""
        taps = np.concatenate([around[:, tap] for tap in self._taps(x.shape[1])], axis=-1)  # (1) (B, n, k·C)
        y, conv = self.conv.forward(taps)  # (2)
        y, gated = ops.glu_forward(y)  # (3)
        return (x + y) * x.dtype.type(_HALF_VARIANCE), ConvolutionCache(conv, gated)  # (4)

    def backward(self, d_x: FloatArray, cache: ConvolutionCache) -> tuple[FloatArray, FloatArray, Gradients]:
        """∂L/∂x but for its part in `around`, ∂L/∂around, and parameter gradients."""
        d_x = d_x * d_x.dtype.type(_HALF_VARIANCE)  # (4)
        d_y = ops.glu_backward(d_x, cache.gated)  # (3)
        d_taps, found = self.conv.backward(d_y, cache.conv)  # (2)
        B, n, C = d_x.shape
        d_around = np.zeros((B, n + self.reach, C), d_x.dtype)
        for tap, d_tap in zip(self._taps(n), np.split(d_taps, self.kernel_size, axis=-1), strict=True):
            d_around[:, tap] += d_tap  # (1)
        return d_x, d_around, named("conv", found)

    def _taps(self, n: int) -> list[slice]:
        """Where each of the k positions of n outputs stands."""
        return [slice(tap * self.dilation, tap * self.dilation + n) for tap in range(self.kernel_size)]


def _layers(settings: config.Convolution, parameters: Weights) -> list[ConvolutionLayer]:
    return [
        ConvolutionLayer(under(parameters, str(number)), kernel_size=settings.kernel_size, dilation=dilation)
        for number, dilation in enumerate(config.dilations(settings))
    ]


# --- encoder ---------------------------------------------------------------------------------------------------------


class ConvolutionLayersCache(NamedTuple):
    """What `ConvolutionLayers.backward` needs."""

    layers: list[ConvolutionCache]
    dropped: list[FloatArray | None]
    real: FloatArray


class ConvolutionLayers:
    """A stack of centred layers with dropout between them.

    Padding is 0 in every layer, as is what lies beyond either end.

    Parameters
    ----------
    settings : config.Convolution
    parameters : dict
        `0.conv.weight` and so on.
    """

    def __init__(self, settings: config.Convolution, parameters: Weights) -> None:
        self.parameters = parameters
        self.dropout = settings.dropout
        self.layers = _layers(settings, parameters)

    def forward(
        self, x: FloatArray, start: None, mask: BoolArray, rng: np.random.Generator | None = None
    ) -> tuple[tuple[FloatArray, tuple[()]], ConvolutionLayersCache]:
        """(B, S, C) → (B, S, C) over the real positions (B, S); nothing precedes them, and there is no final state."""
        del start
        cache = ConvolutionLayersCache([], [], mask[..., None].astype(x.dtype))
        for number, layer in enumerate(self.layers):
            x = x * cache.real  # (1)
            y, dropped = ops.dropout_forward(x, self.dropout if number else 0.0, rng)  # (2)
            ends = (layer.reach // 2, layer.reach // 2)
            x, kept = layer.forward(x, np.pad(y, ((0, 0), ends, (0, 0))))  # (3)
            cache.layers.append(kept)
            cache.dropped.append(dropped)
        return (x, ()), cache

    def backward(
        self, d_x: FloatArray, d_finals: None, cache: ConvolutionLayersCache
    ) -> tuple[FloatArray, None, Gradients]:
        """∂L/∂x, nothing for a start, and parameter gradients."""
        del d_finals
        gradients: Gradients = {}
        for number in reversed(range(len(self.layers))):
            layer, n = self.layers[number], d_x.shape[1]
            d_x, d_around, found = layer.backward(d_x, cache.layers[number])  # (3)
            d_y = d_around[:, layer.reach // 2 :][:, :n]
            d_x = (d_x + ops.dropout_backward(d_y, cache.dropped[number])) * cache.real  # (2), (1)
            gradients.update(named(str(number), found))
        return d_x, None, gradients


class ConvolutionEncoder(SymbolEncoder):
    """Convolutions centred on each symbol.

    Parameters
    ----------
    settings : config.ConvolutionEncoder
    sizes : Sizes
    parameters : dict
        Named as in the inventory, without ``encoder.``.
    """

    def __init__(self, settings: config.ConvolutionEncoder, sizes: Sizes, parameters: Weights) -> None:
        layers = ConvolutionLayers(settings, under(parameters, "layers"))
        super().__init__(layers, sizes, parameters, dropout=settings.dropout)


# --- decoder ---------------------------------------------------------------------------------------------------------


class ConvolutionState(NamedTuple):
    """The last inputs of each layer, (R, (k − 1) · d, C): all that later outputs see of the past; zero at the start."""

    layers: tuple[FloatArray, ...]

    def select(self, rows: IntArray) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same state: there is no graph to cut."""
        return self

    def restarted(self, rows: BoolArray, start: ConvolutionState) -> ConvolutionState:
        """State with these rows (R,) taken back to their start."""
        return mapped(lambda fresh, past: np.where(rows[:, None, None], fresh, past), start, self)


class StepCache(NamedTuple):
    """What the backward pass of one decoder layer needs."""

    dropped: FloatArray | None
    conv: ConvolutionCache
    cross: CrossAttentionCache | None


class ConvolutionDecoderCache(NamedTuple):
    """What `ConvolutionDecoder.backward` needs."""

    embedding: Any
    layers: list[StepCache]
    dropped: FloatArray | None
    output: ops.LinearCache
    memory_mask: BoolArray | None


class ConvolutionDecoder(LayeredDecoder):
    """Convolutions over each position and those before it; without weights for attention, a language model's.

    Parameters
    ----------
    settings : config.ConvolutionDecoder
    parameters : dict
        Named as in the inventory, without ``decoder.``.
    """

    def __init__(self, settings: config.ConvolutionDecoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.settings = settings
        self.embedding = Embedding(under(parameters, "embedding"), dropout=settings.dropout)
        self.layers = _layers(settings, under(parameters, "layers"))
        self.output = Output(parameters)

    def initial_state(self, memory: LayeredMemory | None, batch_size: int) -> ConvolutionState:
        """Zeros."""
        del memory
        C, dtype = self.settings.channels, self.parameters["output.bias"].dtype
        return ConvolutionState(tuple(np.zeros((batch_size, layer.reach, C), dtype) for layer in self.layers))

    def forward(
        self,
        tokens: IntArray,
        memory: LayeredMemory | None,
        state: ConvolutionState,
        *,
        mask: BoolArray | None = None,
        need_attention: bool = False,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, ConvolutionState, FloatArray | None], ConvolutionDecoderCache]:
        """Decode ids (R, n); R is a multiple of the number of sources.

        Returns
        -------
        (logits, state, attention) : (R, n, V) array, the state after the tokens, (R, n, S) array or None
            Attention is that of the last layer.
        cache : ConvolutionDecoderCache
        """
        lengths = np.full(len(tokens), tokens.shape[1]) if mask is None else mask.sum(axis=1)
        x, embedding = self.embedding.forward(tokens, rng)  # (1)
        pasts: list[FloatArray] = []
        caches: list[Any] = []
        for number, layer in enumerate(self.layers):
            around = np.concatenate([state.layers[number], x], axis=1)  # (2) (R, reach + n, C)
            steps = lengths[:, None] + np.arange(layer.reach)
            pasts.append(np.take_along_axis(around, steps[..., None], axis=1))
            around, dropped = ops.dropout_forward(around, self.settings.dropout if number else 0.0, rng)  # (3)
            x, conv = layer.forward(x, around)  # (4)
            cross = None
            if memory is not None:
                attended, cross = layer.cross.forward(x, memory.layers[number], memory.mask)  # (5)
                x = (x + attended) * x.dtype.type(_HALF_VARIANCE)  # (6)
            caches.append(StepCache(dropped, conv, cross))
        x, dropped = ops.dropout_forward(x, self.settings.dropout, rng)  # (7)
        logits, output = self.output.forward(x)  # (8)
        weights = self.weights(caches[-1].cross, len(tokens)) if need_attention and memory is not None else None
        memory_mask = None if memory is None else memory.mask
        cache = ConvolutionDecoderCache(embedding, caches, dropped, output, memory_mask)
        return (logits, ConvolutionState(tuple(pasts)), weights), cache

    def backward(self, d_logits: FloatArray, cache: ConvolutionDecoderCache) -> tuple[LayeredMemory | None, Gradients]:
        """∂L/∂memory and parameter gradients, of a forward pass without a mask; the state before is taken as given."""
        d_x, gradients = self.output.backward(d_logits, cache.output)  # (8)
        d_x = ops.dropout_backward(d_x, cache.dropped)  # (7)
        d_memory: list[KeysValues] = []
        for number in reversed(range(len(self.layers))):
            layer, kept = self.layers[number], cache.layers[number]
            if kept.cross is not None:
                d_x = d_x * d_x.dtype.type(_HALF_VARIANCE)  # (6)
                d_query, d_layer, found = layer.cross.backward(d_x, kept.cross)  # (5)
                d_x = d_x + d_query
                d_memory.append(d_layer)
                gradients.update(named(f"layers.{number}.cross", found))
            d_x, d_around, found = layer.backward(d_x, kept.conv)  # (4)
            gradients.update(named(f"layers.{number}", found))
            d_x = d_x + ops.dropout_backward(d_around, kept.dropped)[:, layer.reach :]  # (3), (2)
        accumulate(gradients, named("embedding", self.embedding.backward(d_x, cache.embedding)))  # (1)
        if cache.memory_mask is None:
            return None, gradients
        return LayeredMemory(cache.memory_mask, tuple(reversed(d_memory))), gradients
