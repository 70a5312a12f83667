"""Transformer encoder; features are tokens with a type embedding and no position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unrolled import config
from unrolled.parameters import Sizes
from unrolled.reference import ops
from unrolled.reference.attention import Visible
from unrolled.reference.encoded import Encoded
from unrolled.reference.layer import BoolArray, Gradients, IntArray, Weights, named, under
from unrolled.reference.positions import symbol_positions
from unrolled.reference.transformer import EncoderLayer, EncoderLayerCache, Ends, EntranceCache

__all__ = ["TransformerEncoder"]


class TransformerEncoderCache(NamedTuple):
    """What `TransformerEncoder.backward` needs."""

    entrance: EntranceCache
    layers: list[EncoderLayerCache]
    exit: ops.LayerNormCache | None


class TransformerEncoder:
    """Encoder layers over the source.

    Parameters
    ----------
    settings : config.TransformerEncoder
    sizes : Sizes
    parameters : dict
        Named as in the inventory, without ``encoder.``.
    """

    def __init__(self, settings: config.TransformerEncoder, sizes: Sizes, parameters: Weights) -> None:
        self.parameters = parameters
        self.first_feature = sizes.source - sizes.features
        self.has_features = "feature_type" in parameters
        self.ends = Ends(settings, parameters)
        self.layers = [
            EncoderLayer(settings, under(parameters, f"layers.{number}")) for number in range(settings.num_layers)
        ]

    def forward(
        self, source: IntArray, source_mask: BoolArray, rng: np.random.Generator | None = None
    ) -> tuple[Encoded, TransformerEncoderCache]:
        """Encode ids (B, S)."""
        is_feature = source >= self.first_feature
        positions = symbol_positions(source, source_mask, self.first_feature)
        x, entrance = self.ends.enter(source, positions, is_feature if self.has_features else None, rng)  # (1)
        caches, visible = [], Visible(keys=source_mask, window=self.ends.settings.window)
        for layer in self.layers:
            x, cache = layer.forward(x, positions, visible, rng)  # (2)
            caches.append(cache)
        output, norm = self.ends.leave(x)  # (3)
        return Encoded(output, source_mask, positions, ()), TransformerEncoderCache(entrance, caches, norm)

    def backward(self, d_encoded: Encoded, cache: TransformerEncoderCache) -> Gradients:
        """Parameter gradients."""
        d_x, gradients = self.ends.leave_backward(d_encoded.output, cache.exit)  # (3)
        for number in reversed(range(len(self.layers))):
            d_x, found = self.layers[number].backward(d_x, cache.layers[number])  # (2)
            gradients.update(named(f"layers.{number}", found))
        return {**gradients, **self.ends.enter_backward(d_x, cache.entrance)}  # (1)
