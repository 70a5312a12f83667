"""Transformer decoder with a key-value cache."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from unrolled import config
from unrolled.reference import ops
from unrolled.reference.attention import Visible
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, accumulate, named, under
from unrolled.reference.layered import LayeredDecoder, LayeredMemory
from unrolled.reference.layers import Output
from unrolled.reference.multihead import KeysValues
from unrolled.reference.states import mapped, selected
from unrolled.reference.transformer import DecoderLayer, DecoderLayerCache, Ends, EntranceCache

__all__ = ["TransformerDecoder", "TransformerState"]


class TransformerState(NamedTuple):
    """The past of a Transformer decoder.

    `layers` hold P past positions; `valid` (R, P) tells which of them are real tokens of their row; `position` (R,) is
    each row's number of real tokens so far. With a window w, P is at most w − 1: the last real tokens of each row, at
    the end.
    """

    layers: tuple[KeysValues, ...]
    valid: BoolArray
    position: IntArray

    def select(self, rows: IntArray) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same state: there is no graph to cut."""
        return self

    def restarted(self, rows: BoolArray, start: TransformerState) -> TransformerState:
        """State with these rows (R,) taken back to their start: their past is hidden and they count from 0."""
        position = np.where(rows, start.position, self.position)
        return TransformerState(self.layers, self.valid & ~rows[:, None], position)

    def last(self, num_positions: int, lengths: IntArray, n: int) -> TransformerState:
        """State with no more than each row's last positions, where the last n hold its `lengths` (R,) real tokens."""
        past = self.valid.shape[1]
        kept = min(num_positions, past)
        steps = lengths[:, None] + np.arange(past - n - kept, past - n)  # (R, kept)
        inside = np.maximum(steps, 0)
        layers = mapped(lambda x: np.take_along_axis(x, inside[:, None, :, None], axis=2), self.layers)
        valid = np.take_along_axis(self.valid, inside, axis=1) & (steps >= 0)
        return TransformerState(layers, valid, self.position)


class TransformerDecoderCache(NamedTuple):
    """What `TransformerDecoder.backward` needs."""

    entrance: EntranceCache
    layers: list[DecoderLayerCache]
    exit: ops.LayerNormCache | None
    output: ops.LinearCache
    memory_mask: BoolArray | None


class TransformerDecoder(LayeredDecoder):
    """Decoder layers over the target; without weights for attention to a source, those of a language model.

    Parameters
    ----------
    settings : config.TransformerDecoder
    parameters : dict
        Named as in the inventory, without ``decoder.``.
    """

    def __init__(self, settings: config.TransformerDecoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.head_shape = (settings.num_heads, settings.d_model // settings.num_heads)
        self.window = settings.window
        self.ends = Ends(settings, parameters)
        self.layers = [
            DecoderLayer(settings, under(parameters, f"layers.{number}")) for number in range(settings.num_layers)
        ]
        self.output = Output(parameters)

    def initial_state(self, memory: LayeredMemory | None, batch_size: int) -> TransformerState:
        """Nothing seen yet."""
        del memory
        heads, head_dim = self.head_shape
        empty = np.zeros((batch_size, heads, 0, head_dim), self.parameters["output.bias"].dtype)
        layers = (KeysValues(empty, empty),) * len(self.layers)
        return TransformerState(layers, np.zeros((batch_size, 0), np.bool_), np.zeros(batch_size, np.int64))

    def forward(
        self,
        tokens: IntArray,
        memory: LayeredMemory | None,
        state: TransformerState,
        *,
        mask: BoolArray | None = None,
        need_attention: bool = False,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, TransformerState, FloatArray | None], TransformerDecoderCache]:
        """Decode ids (R, n); R is a multiple of the number of sources.

        Returns
        -------
        (logits, state, attention) : (R, n, V) array, the state after the tokens, (R, n, S) array or None
            Attention is that of the last layer, averaged over its heads.
        cache : TransformerDecoderCache
        """
        real = np.ones(tokens.shape, np.bool_) if mask is None else mask
        valid = np.concatenate([state.valid, real], axis=1)  # (R, P + n)
        positions = np.where(real, state.position[:, None] + np.arange(tokens.shape[1]), 0)  # padding needs none
        visible = Visible(keys=valid, is_causal=True, window=self.window)
        x, entrance = self.ends.enter(tokens, positions, None, rng)  # (1)
        caches: list[Any] = []
        for number, layer in enumerate(self.layers):
            source = None if memory is None else (memory.layers[number], memory.mask)
            x, cache = layer.forward(x, positions, visible, state.layers[number], memory=source, rng=rng)  # (2)
            caches.append(cache)
        x, norm = self.ends.leave(x)  # (3)
        logits, output = self.output.forward(x)  # (4)
        reached = tuple(cache.attention.inner.reached for cache in caches)
        lengths = real.sum(axis=1)
        last = TransformerState(reached, valid, state.position + lengths)
        if self.window is not None:
            last = last.last(self.window - 1, lengths, tokens.shape[1])
        is_asked = need_attention and memory is not None
        weights = self.weights(caches[-1].cross.inner, len(tokens)) if is_asked else None
        memory_mask = None if memory is None else memory.mask
        return (logits, last, weights), TransformerDecoderCache(entrance, caches, norm, output, memory_mask)

    def backward(self, d_logits: FloatArray, cache: TransformerDecoderCache) -> tuple[LayeredMemory | None, Gradients]:
        """∂L/∂memory and parameter gradients, of a forward pass without a mask; the state before is taken as given."""
        d_x, gradients = self.output.backward(d_logits, cache.output)  # (4)
        d_x, found = self.ends.leave_backward(d_x, cache.exit)  # (3)
        gradients.update(found)
        d_memory: list[Any] = []
        for number in reversed(range(len(self.layers))):
            d_x, d_layer, found = self.layers[number].backward(d_x, cache.layers[number])  # (2)
            d_memory.append(d_layer)
            gradients.update(named(f"layers.{number}", found))
        accumulate(gradients, self.ends.enter_backward(d_x, cache.entrance))  # (1)
        if cache.memory_mask is None:
            return None, gradients
        return LayeredMemory(cache.memory_mask, tuple(reversed(d_memory))), gradients
