"""Optimisers as pure functions: weights, gradients and state in; new weights and a new state out.

Weights and gradients are dicts by name. Nothing is changed in place, so that a step that turns out bad is undone by
forgetting it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from unrolled.reference.layer import FloatArray, Gradients, Weights

__all__ = ["AdamWState", "Clipped", "adamw", "adamw_start", "clip", "sgd", "sgd_start"]


class Clipped(NamedTuple):
    """Gradients whose common norm is at most the limit, and their norm before."""

    gradients: Gradients
    norm: float


def clip(gradients: Gradients, max_norm: float) -> Clipped:
    """Scale all gradients by ``min(1, max_norm / ‖g‖)``, ‖g‖ the norm of all of them together (Pascanu et al. 2013).

    Parameters
    ----------
    gradients : dict of arrays
    max_norm : float

    Returns
    -------
    Clipped
        Where the norm is not finite, the gradients are returned as they are: a scale of 0 or NaN would only hide which
        of them is broken. Look at `norm` before using them.
    """
    norm = math.sqrt(sum(float(np.vdot(gradient, gradient)) for gradient in gradients.values()))
    if not math.isfinite(norm) or norm <= max_norm:
        return Clipped(gradients, norm)
    return Clipped({name: gradient * (max_norm / norm) for name, gradient in gradients.items()}, norm)


# --- SGD -------------------------------------------------------------------------------------------------------------


def sgd_start(weights: Weights) -> dict[str, FloatArray]:
    """State before the first step: zero velocities."""
    return {name: np.zeros_like(weight) for name, weight in weights.items()}


def sgd(
    weights: Weights,
    gradients: Gradients,
    velocities: dict[str, FloatArray],
    *,
    learning_rate: float,
    momentum: float = 0.0,
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """``v' = μ v + g``, ``w' = w − η v'`` (Polyak 1964, in the form of Sutskever et al. 2013).

    Parameters
    ----------
    weights, gradients : dicts of arrays
    velocities : dict of arrays
        From `sgd_start` or the step before.
    learning_rate : float
        η.
    momentum : float
        μ; 0 for plain gradient descent.

    Returns
    -------
    weights, velocities : dicts of arrays
    """
    moved: dict[str, FloatArray] = {name: momentum * velocities[name] + gradients[name] for name in weights}
    return {name: weight - learning_rate * moved[name] for name, weight in weights.items()}, moved


# --- AdamW -----------------------------------------------------------------------------------------------------------


class AdamWState(NamedTuple):
    """Number of steps taken, and running means of the gradient and of its square."""

    steps: int
    first: dict[str, FloatArray]
    second: dict[str, FloatArray]


def adamw_start(weights: Weights) -> AdamWState:
    """State before the first step."""
    zeros = {name: np.zeros_like(weight) for name, weight in weights.items()}
    return AdamWState(0, zeros, dict(zeros))


def adamw(
    weights: Weights,
    gradients: Gradients,
    state: AdamWState,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.98,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[dict[str, FloatArray], AdamWState]:
    """Adam with decoupled weight decay on matrices (Loshchilov & Hutter 2019, algorithm 2).

    ``m' = β₁ m + (1 − β₁) g``, ``v' = β₂ v + (1 − β₂) g²``,
    ``w' = (1 − η λ) w − η (m' / (1 − β₁ᵗ)) / (√(v' / (1 − β₂ᵗ)) + ε)``.

    Parameters
    ----------
    weights, gradients : dicts of arrays
    state : AdamWState
        From `adamw_start` or the step before.
    learning_rate, beta1, beta2, epsilon, weight_decay : float
        η, β₁, β₂, ε and λ; biases and norms, which have one axis, do not decay.

    Returns
    -------
    weights : dict of arrays
    state : AdamWState
    """
    t = state.steps + 1
    first = {name: beta1 * state.first[name] + (1.0 - beta1) * gradients[name] for name in weights}
    second = {name: beta2 * state.second[name] + (1.0 - beta2) * gradients[name] ** 2 for name in weights}
    updated: dict[str, FloatArray] = {}
    for name, weight in weights.items():
        decay = weight_decay if weight.ndim > 1 else 0.0
        root = np.sqrt(second[name] / (1.0 - beta2**t)) + epsilon
        updated[name] = (1.0 - learning_rate * decay) * weight - learning_rate / (1.0 - beta1**t) * first[name] / root
    return updated, AdamWState(t, first, second)
