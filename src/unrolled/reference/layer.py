"""What a layer is, and how the weights of layers inside layers are named.

A layer keeps its weights in `parameters` and nothing else. ``outputs, cache = layer.forward(*inputs)`` keeps in the
cache what the way back needs, and ``*d_inputs, gradients = layer.backward(*d_outputs, cache)`` returns ∂L/∂ of each
real-valued input, in order, and a dict with ∂L/∂ of each parameter. Both are pure: no layer remembers a call. Results
have the type of the inputs (float16, float32, float64).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unrolled.next_symbol import FloatArray, IntArray

__all__ = ["BoolArray", "FloatArray", "Gradients", "IntArray", "Layer", "Weights", "accumulate", "named", "under"]

BoolArray = NDArray[np.bool_]
Weights = Mapping[str, FloatArray]
Gradients = dict[str, FloatArray]


class Layer(Protocol):
    """Anything with parameters, a forward and a backward pass; what `gradient_check` accepts."""

    @property
    def parameters(self) -> Weights:
        """Weights by name."""

    @property
    def forward(self) -> Callable[..., tuple[Any, Any]]:
        """``forward(*inputs) -> (outputs, cache)``; outputs are an array or a tuple of arrays."""

    @property
    def backward(self) -> Callable[..., Any]:
        """``backward(*d_outputs, cache) -> (*d_inputs, gradients)``; gradients alone where no input is real-valued."""


def under(weights: Weights, name: str) -> dict[str, FloatArray]:
    """The weights whose names begin with ``name.``, without that beginning."""
    start = name + "."
    return {key.removeprefix(start): value for key, value in weights.items() if key.startswith(start)}


def named(name: str, weights: Weights) -> dict[str, FloatArray]:
    """The same arrays with ``name.`` before their names; undoes `under`."""
    return {f"{name}.{key}": value for key, value in weights.items()}


def accumulate(total: Gradients, found: Gradients) -> None:
    """Add gradients to a running total, by name."""
    for name, gradient in found.items():
        total[name] = total[name] + gradient if name in total else gradient
