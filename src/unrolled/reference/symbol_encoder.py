"""What recurrent and convolutional encoders have in common: layers over the symbols, features beside them.

Axes: B batch, S source, E embedding, M memory (output) size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled.parameters import Sizes
from unrolled.reference import ops
from unrolled.reference.encoded import Encoded
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, named, under
from unrolled.reference.layers import Embedding, Linear
from unrolled.reference.positions import symbol_positions

__all__ = ["SymbolEncoder", "SymbolLayers"]


class SymbolLayers(Protocol):
    """Layers over ragged rows."""

    @property
    def forward(self) -> Callable[..., tuple[tuple[FloatArray, tuple[Any, ...]], Any]]:
        """``forward(x, start, mask, rng) -> ((output, finals), cache)``; there is no start."""

    @property
    def backward(self) -> Callable[..., tuple[FloatArray, Any, Gradients]]:
        """``backward(d_output, d_finals, cache) -> (d_x, d_start, gradients)``."""


class SymbolEncoderCache(NamedTuple):
    """What `SymbolEncoder.backward` needs."""

    embedding: Any
    is_feature: BoolArray
    shares: FloatArray
    features: ops.LinearCache | None
    layers: Any
    dropped: FloatArray | None


class SymbolEncoder:
    """Embedding and layers over the symbols; features are memory entries of their own.

    Every symbol's input carries the mean of the row's feature embeddings, and each feature stands in the memory after a
    projection, so that attention can look at it. The order of features does not matter.

    Parameters
    ----------
    layers : SymbolLayers
    sizes : Sizes
    parameters : dict
        Named as in the inventory, without ``encoder.``.
    dropout : float
        Rate, on the embeddings and on the output.
    """

    def __init__(self, layers: SymbolLayers, sizes: Sizes, parameters: Weights, *, dropout: float) -> None:
        self.parameters = parameters
        self.dropout = dropout
        self.first_feature = sizes.source - sizes.features
        self.embedding = Embedding(under(parameters, "embedding"), dropout=dropout)
        self.layers = layers
        self.features = Linear(under(parameters, "features")) if sizes.features else None

    def forward(
        self, source: IntArray, source_mask: BoolArray, rng: np.random.Generator | None = None
    ) -> tuple[Encoded, SymbolEncoderCache]:
        """Encode ids (B, S)."""
        x, embedding = self.embedding.forward(source, rng)  # (1)
        is_feature = source >= self.first_feature
        real, counted = source_mask & ~is_feature, (source_mask & is_feature).astype(x.dtype)
        shares = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1.0)  # (B, S)
        projected = None
        if self.features is not None:
            x[is_feature] += self.parameters["feature_type"]  # (2)
            at_features, projected = self.features.forward(x[is_feature])  # (3)
            x = x + shares[:, None] @ x  # (4) every position gets the mean over the features
        (output, finals), layers = self.layers.forward(x, None, real, rng)  # (5)
        if self.features is not None:
            output[is_feature] = at_features  # (6)
        output, dropped = ops.dropout_forward(output, self.dropout, rng)  # (7)
        cache = SymbolEncoderCache(embedding, is_feature, shares, projected, layers, dropped)
        positions = symbol_positions(source, source_mask, self.first_feature)
        return Encoded(output, source_mask, positions, finals), cache

    def backward(self, d_encoded: Encoded, cache: SymbolEncoderCache) -> Gradients:
        """Parameter gradients; ``d_encoded.finals`` may be empty for zero."""
        d_output = ops.dropout_backward(d_encoded.output, cache.dropped)  # (7)
        gradients: Gradients = {}
        d_at_features = d_output[cache.is_feature]  # (6)
        d_output = np.where(cache.is_feature[..., None], 0.0, d_output)  # (6)
        d_x, _, found = self.layers.backward(d_output, d_encoded.finals or None, cache.layers)  # (5)
        gradients.update(named("layers", found))
        if self.features is not None:
            d_mean = d_x.sum(axis=1, keepdims=True)  # (4) (B, 1, E)
            d_x = d_x + cache.shares[..., None] * d_mean  # (4)
            assert cache.features is not None
            d_features, found = self.features.backward(d_at_features, cache.features)  # (3)
            d_x[cache.is_feature] += d_features  # (3)
            gradients.update(named("features", found))
            gradients["feature_type"] = d_x[cache.is_feature].sum(axis=0)  # (2)
        gradients.update(named("embedding", self.embedding.backward(d_x, cache.embedding)))  # (1)
        return gradients
