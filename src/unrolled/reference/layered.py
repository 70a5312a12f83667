"""Decoders each of whose layers attends to the memory: what is computed once a source, and its gradient."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from unrolled.reference import ops
from unrolled.reference.encoded import Encoded
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, named
from unrolled.reference.multihead import CrossAttentionCache, KeysValues
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


class LayeredDecoder:
    """What such decoders have in common; of a subclass whose `layers` each have a `cross`, where there is a memory."""

    layers: list[Any]

    def prepare(self, encoded: Encoded) -> tuple[LayeredMemory, list[ops.LinearCache]]:
        """Compute once a source the keys and values of every layer."""
        pairs = [layer.cross.prepare(encoded.output) for layer in self.layers]
        return LayeredMemory(encoded.mask, tuple(memory for memory, _ in pairs)), [cache for _, cache in pairs]

    def prepare_backward(self, d_memory: LayeredMemory, cache: list[ops.LinearCache]) -> tuple[Encoded, Gradients]:
        """∂L/∂encoded and parameter gradients."""
        d_outputs, gradients = [], {}
        for number, layer in enumerate(self.layers):
            d_output, found = layer.cross.prepare_backward(d_memory.layers[number], cache[number])
            d_outputs.append(d_output)
            gradients.update(named(f"layers.{number}.cross", found))
        return Encoded(sum(d_outputs[1:], start=d_outputs[0]), d_memory.mask, ()), gradients

    def weights(self, cache: CrossAttentionCache, num_rows: int) -> FloatArray:
        """Attention of the last layer to the source, averaged over its heads: (R, n, S)."""
        weights: FloatArray = self.layers[-1].cross.weights(cache, num_rows).mean(axis=1)
        return weights
