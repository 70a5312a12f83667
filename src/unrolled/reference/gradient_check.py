"""Finite differences against a backward pass: the proof that each layer owes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from unrolled.errors import ShapeError
from unrolled.reference.layer import FloatArray, Layer
from unrolled.reference.states import mapped

__all__ = ["gradient_check"]


def gradient_check(layer: Layer, *inputs: Any, step: float = 1e-5, seed: int = 0) -> dict[str, float]:
    """Relative error of a layer's backward pass for every parameter and every real-valued input.

    The loss is ``L = Σ r ⊙ output`` with fixed random r, so that every output counts. The numerical gradient is
    ``(L(θ + ε) − L(θ − ε)) / 2ε``, entry by entry. The error of a gradient a against its numerical twin n is
    ``‖a − n‖ / max(‖a‖ + ‖n‖, 1e-6 · largest norm of all gradients)``: some true gradients are exactly 0, such as that
    of an attention key's bias, and must not be divided by.

    Parameters
    ----------
    layer : Layer
        ``layer.parameters`` is a dict of float64 arrays that ``layer.forward(*inputs)`` reads at each call;
        ``layer.backward(*d_outputs, cache)`` returns one gradient for each real-valued input, in order, then a dict
        with one for each parameter. Start states are inputs like any other, and may be tuples of arrays.
    inputs : arrays, tuples of arrays, or anything else
        Float64 arrays are checked; other things are passed on as they are. None given:
        ``layer.example_inputs(rng)``, if the layer has such a method.
    step : float
        ε.
    seed : int
        Decides r, and the example inputs.

    Returns
    -------
    errors : dict of float
        By parameter name, and by ``input 0``, ``input 1`` (``input 1.0`` for parts of a tuple), real-valued inputs
        alone being counted. A right backward pass stays below 1e-6, usually below 1e-8.

    Raises
    ------
    ShapeError
        If something is not float64, or a gradient is missing or has another shape than what it belongs to.

    Notes
    -----
    Parameters and inputs are changed in place while checking, and restored.
    """
    rng = np.random.default_rng(seed)
    if not inputs and hasattr(layer, "example_inputs"):
        inputs = layer.example_inputs(rng)
    outputs, cache = layer.forward(*inputs)
    d_outputs = mapped(lambda output: rng.normal(size=np.shape(output)), outputs)
    top = d_outputs if isinstance(d_outputs, tuple) else (d_outputs,)
    returned = layer.backward(*top, cache)
    *d_inputs, d_parameters = returned if isinstance(returned, tuple) else (returned,)

    values, analytic = dict(layer.parameters), dict(d_parameters)
    real = [value for value in inputs if any(_is_real(leaf) for _, leaf in _leaves(value))]
    if len(real) != len(d_inputs):
        raise ShapeError(f"backward returned gradients of {len(d_inputs)} inputs, expected {len(real)}")
    for number, (value, d_value) in enumerate(zip(real, d_inputs, strict=True)):
        values.update((f"input {number}{name}", leaf) for name, leaf in _leaves(value))
        analytic.update((f"input {number}{name}", leaf) for name, leaf in _leaves(d_value))
    _check_shapes(values, analytic)

    def loss() -> float:
        again = _leaves(layer.forward(*inputs)[0])
        return float(sum(np.vdot(r, y) for (_, r), (_, y) in zip(_leaves(d_outputs), again, strict=True)))

    numerical = {name: _differences(loss, value, step) for name, value in values.items()}
    scale = 1e-6 * max(float(np.linalg.norm(gradient)) for gradient in numerical.values())
    return {name: _error(analytic[name], numerical[name], scale) for name in values}


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.floating)


def _leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Arrays of a nested tuple with the path to each."""
    if not isinstance(tree, tuple):
        yield name, tree
        return
    for number, leaf in enumerate(tree):
        yield from _leaves(leaf, f"{name}.{number}")


def _check_shapes(values: dict[str, FloatArray], analytic: dict[str, FloatArray]) -> None:
    for name, value in values.items():
        if value.dtype != np.float64:
            raise ShapeError(f"{name} must be float64 for a gradient check, got {value.dtype}")
        if name not in analytic:
            raise ShapeError(f"backward returned no gradient of {name}, expected one of shape {value.shape}")
        if analytic[name].shape != value.shape:
            raise ShapeError(f"gradient of {name} must have shape {value.shape}, got {analytic[name].shape}")
    for name in analytic.keys() - values.keys():
        raise ShapeError(f"backward returned a gradient of {name}, which is no parameter")


def _differences(loss: Any, value: FloatArray, step: float) -> FloatArray:
    gradient = np.zeros_like(value)
    for index in np.ndindex(value.shape):
        kept = value[index]
        value[index] = kept + step
        above = loss()
        value[index] = kept - step
        gradient[index] = (above - loss()) / (2.0 * step)
        value[index] = kept
    return gradient


def _error(analytic: FloatArray, numerical: FloatArray, scale: float) -> float:
    size = float(np.linalg.norm(analytic) + np.linalg.norm(numerical))
    difference = float(np.linalg.norm(analytic - numerical))
    return difference / max(size, scale) if difference else 0.0
