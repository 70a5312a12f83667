"""Recurrent encoder: embedding and recurrent layers over the symbols, features beside them.

Axes: B batch, S source, E embedding, M memory (output) size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unrolled import config
from unrolled.parameters import Sizes
from unrolled.reference import ops
from unrolled.reference.cells import cell_type
from unrolled.reference.encoded import Encoded
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, named, under
from unrolled.reference.layers import Embedding, Linear
from unrolled.reference.recurrence import Recurrent, RecurrentCache

__all__ = ["RecurrentEncoder"]


class RecurrentEncoderCache(NamedTuple):
    """What `RecurrentEncoder.backward` needs."""

    embedding: Any
    is_feature: BoolArray
    shares: FloatArray
    features: ops.LinearCache | None
    layers: RecurrentCache
    dropped: FloatArray | None


class RecurrentEncoder:
    """Embedding and recurrent layers over the symbols; features are memory entries of their own.

    Every symbol's input carries the mean of the row's feature embeddings, and each feature stands in the memory after a
    projection, so that attention can look at it. The order of features does not matter.

    Parameters
    ----------
    settings : config.RecurrentEncoder
    sizes : Sizes
    parameters : dict
        Named as in the inventory, without ``encoder.``.
    """

    def __init__(self, settings: config.RecurrentEncoder, sizes: Sizes, parameters: Weights) -> None:
        self.parameters = parameters
        self.dropout = settings.dropout
        self.first_feature = sizes.source - sizes.features
        self.embedding = Embedding(under(parameters, "embedding"), dropout=settings.dropout)
        self.layers = Recurrent.from_parameters(
            cell_type(settings),
            under(parameters, "layers"),
            dropout=settings.dropout,
            is_reversed=settings.is_reversed,
        )
        self.features = Linear(under(parameters, "features")) if sizes.features else None

    def forward(
        self, source: IntArray, source_mask: BoolArray, rng: np.random.Generator | None = None
    ) -> tuple[Encoded, RecurrentEncoderCache]:
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
        cache = RecurrentEncoderCache(embedding, is_feature, shares, projected, layers, dropped)
        return Encoded(output, source_mask, finals), cache

    def backward(self, d_encoded: Encoded, cache: RecurrentEncoderCache) -> Gradients:
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
