"""What a model's outputs mean: their loss, and draws from the distribution that they stand for."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["HEADS", "Bernoulli", "Categorical", "Head", "Regression"]


class Head(Protocol):
    """A distribution of labels whose parameters are the outputs (B, T, O) of a model."""

    def loss_sum(self, outputs: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        """-ln P of the labels, summed over the places (B, T) that count."""

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Labels drawn from the distribution."""


class Categorical:
    """One of O classes: ``P(y) = softmax(z)_y``; labels are ids (B, T)."""

    def loss_sum(self, outputs: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        """Cross entropy in nats."""
        return functional.cross_entropy(outputs[counted], labels[counted], reduction="sum")

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Ids (B, T), by the largest of scores and Gumbel noise."""
        noise = torch.rand(outputs.shape, generator=generator, device=outputs.device, dtype=torch.float64)
        return (outputs - torch.log(-torch.log1p(-noise))).argmax(dim=-1)


class Bernoulli:
    """O things, each there or not for itself: ``P(y_i = 1) = σ(z_i)``; labels are 0 or 1 (B, T, O)."""

    def loss_sum(self, outputs: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        """``sum_i ln(1 + exp(z_i)) - y_i z_i`` in nats, over all things of a place."""
        losses = functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none").sum(dim=-1)  # (B, T)
        return losses[counted].sum()

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Zeros and ones (B, T, O)."""
        noise = torch.rand(outputs.shape, generator=generator, device=outputs.device, dtype=outputs.dtype)
        return (noise < torch.sigmoid(outputs)).to(outputs.dtype)


class Regression:
    """O numbers; labels are numbers (B, T, O).

    The squared error is -ln of the normal density around the output whose variance is 1/2, less the constant ½ ln π.
    """

    def loss_sum(self, outputs: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        """``sum_i (y_i - z_i)²``."""
        return (labels - outputs).square().sum(dim=-1)[counted].sum()

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Numbers (B, T, O): the outputs and normal noise of variance 1/2."""
        noise = torch.randn(outputs.shape, generator=generator, device=outputs.device, dtype=outputs.dtype)
        return outputs + math.sqrt(0.5) * noise


HEADS: dict[str, Head] = {"categorical": Categorical(), "bernoulli": Bernoulli(), "regression": Regression()}
