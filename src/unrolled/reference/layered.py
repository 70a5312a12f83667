"""Decoders each of whose layers attends to the memory: what is computed once a source, and its gradient."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from unrolled.reference.encoded import Encoded
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, named
from unrolled.reference.multihead import CrossAttentionCache, CrossMemoryCache, KeysValues
from unrolled.reference.states import selected

__all__ = ["LayeredDecoder", "LayeredMemory"]


class LayeredMemory(NamedTuple):
    """The encoder's mask (B, S) and each layer's keys and values of it, (B, N, S, K).

    Its gradient has the same form.
    """

    mask: BoolArray
    layers: tuple[KeysValues, ...]

    def select(self, sources: IntArray) -> Self:
        """Memory of these sources alone."""
        return selected(self, sources)


class PrepareCache(NamedTuple):
    """What `LayeredDecoder.prepare_backward` needs."""

    encoded: Encoded
    layers: list[CrossMemoryCache]


class LayeredDecoder:
    """What such decoders have in common; of a subclass whose `layers` each have a `cross`, where there is a memory."""

    layers: list[Any]

    def prepare(self, encoded: Encoded) -> tuple[LayeredMemory, PrepareCache]:
        """Compute once a source the keys and values of every layer."""
        pairs = [layer.cross.prepare(encoded.output, encoded.positions) for layer in self.layers]
        memory = LayeredMemory(encoded.mask, tuple(keys_values for keys_values, _ in pairs))
        return memory, PrepareCache(encoded, [cache for _, cache in pairs])

    def prepare_backward(self, d_memory: LayeredMemory, cache: PrepareCache) -> tuple[Encoded, Gradients]:
        """∂L/∂encoded and parameter gradients."""
        d_outputs, gradients = [], {}
        for number, layer in enumerate(self.layers):
            d_output, found = layer.cross.prepare_backward(d_memory.layers[number], cache.layers[number])
            d_outputs.append(d_output)
            gradients.update(named(f"layers.{number}.cross", found))
        return cache.encoded._replace(output=sum(d_outputs[1:], start=d_outputs[0]), finals=()), gradients

    def weights(self, cache: CrossAttentionCache, num_rows: int) -> FloatArray:
        """Attention of the last layer to the source, averaged over its heads: (R, n, S)."""
        weights: FloatArray = self.layers[-1].cross.weights(cache, num_rows).mean(axis=1)
        return weights
