"""What a model's outputs mean: their loss with its derivative, and draws from the distribution they stand for.

Axes: B batch, T steps, O outputs. Losses are sums over the places (B, T) that count.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled.reference import ops
from unrolled.reference.layer import BoolArray, FloatArray, IntArray

__all__ = ["HEADS", "Bernoulli", "Categorical", "Head", "Regression"]


class Head(Protocol):
    """A distribution of labels whose parameters are the outputs of a model."""

    def forward(self, outputs: FloatArray, labels: Any, counted: BoolArray) -> tuple[FloatArray, Any]:
        """-ln P of the labels, a 0-d array, and a cache."""

    def backward(self, d_loss: FloatArray | float, cache: Any) -> FloatArray:
        """∂L/∂outputs (B, T, O)."""

    def sample(self, outputs: FloatArray, rng: np.random.Generator) -> Any:
        """Labels drawn from the distribution."""


class Categorical:
    """One of O classes: ``P(y) = softmax(z)_y``; labels are ids (B, T)."""

    def forward(
        self, outputs: FloatArray, labels: IntArray, counted: BoolArray
    ) -> tuple[FloatArray, ops.CrossEntropyCache]:
        """Cross entropy in nats."""
        return ops.cross_entropy_forward(outputs, labels, counted)

    def backward(self, d_loss: FloatArray | float, cache: ops.CrossEntropyCache) -> FloatArray:
        """``d_z = (p - y) d_L``."""
        return ops.cross_entropy_backward(d_loss, cache)

    def sample(self, outputs: FloatArray, rng: np.random.Generator) -> IntArray:
        """Ids (B, T), by the largest of scores and Gumbel noise."""
        ids: IntArray = (outputs + rng.gumbel(size=outputs.shape)).argmax(axis=-1)
        return ids


class DifferenceCache(NamedTuple):
    """Expectation less label where it counts, else 0."""

    difference: FloatArray


class Bernoulli:
    """O things, each there or not for itself: ``P(y_i = 1) = σ(z_i)``; labels are 0 or 1 (B, T, O)."""

    def forward(
        self, outputs: FloatArray, labels: FloatArray, counted: BoolArray
    ) -> tuple[FloatArray, DifferenceCache]:
        """``L = sum_i ln(1 + exp(z_i)) - y_i z_i`` in nats, without overflow for any finite z."""
        losses = np.logaddexp(0.0, outputs) - labels * outputs
        difference = (ops.sigmoid(outputs) - labels) * counted[..., None]
        return np.asarray(losses.sum(axis=-1).sum(where=counted)), DifferenceCache(difference)

    def backward(self, d_loss: FloatArray | float, cache: DifferenceCache) -> FloatArray:
        """``d_z = (σ(z) - y) d_L``."""
        return cache.difference * d_loss

    def sample(self, outputs: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Zeros and ones (B, T, O)."""
        return (rng.random(outputs.shape) < ops.sigmoid(outputs)).astype(outputs.dtype)


class Regression:
    """O numbers; labels are numbers (B, T, O).

    The squared error is -ln of the normal density around the output whose variance is 1/2, less the constant ½ ln π.
    """

    def forward(
        self, outputs: FloatArray, labels: FloatArray, counted: BoolArray
    ) -> tuple[FloatArray, DifferenceCache]:
        """``L = sum_i (y_i - z_i)²``."""
        difference = (outputs - labels) * counted[..., None]
        return np.asarray((difference * difference).sum()), DifferenceCache(difference)

    def backward(self, d_loss: FloatArray | float, cache: DifferenceCache) -> FloatArray:
        """``d_z = 2 (z - y) d_L``."""
        return cache.difference * (2.0 * d_loss)

    def sample(self, outputs: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Numbers (B, T, O): the outputs and normal noise of variance 1/2."""
        return outputs + math.sqrt(0.5) * rng.standard_normal(outputs.shape).astype(outputs.dtype)


HEADS: dict[str, Head] = {"categorical": Categorical(), "bernoulli": Bernoulli(), "regression": Regression()}
