"""What all recurrent cells share: a step cut in two, and its way back.

Only one part of a step is sequential. The input part of the gates, ``x W_ihᵀ + b``, is a product that the driver
(`recurrence`) forms for all steps at once before its loop; `step` adds the recurrent part, ``h W_hhᵀ``, and does the
rest. On the way back `step_backward` returns the gradients of both parts, and `gradients` turns those of all steps into
weight gradients with one product. `forward` and `backward` are a single step as in a textbook.

Axes: T steps, B batch, I inputs, H hidden, G·H stacked gates.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike

from unrolled.errors import ShapeError
from unrolled.parameters import Constant, Initialiser, Orthogonal, Parameter, Xavier, initialise
from unrolled.reference.layer import FloatArray, Gradients, Weights
from unrolled.reference.ops import LinearCache, linear_backward, linear_forward
from unrolled.reference.states import CellState, HiddenState

__all__ = ["Cell", "CellCache", "HiddenCell", "StepGradients", "blocks"]


class StepGradients(NamedTuple):
    """What `step_backward` returns.

    `d_input` (B, G·H) belongs to the input part of the gates and `d_recurrent` (B, G·H) to the recurrent part; where
    the two are only added, they are the same array.
    """

    d_input: FloatArray
    d_recurrent: FloatArray
    d_state: Any


class CellCache(NamedTuple):
    """Cache of one textbook step."""

    x: FloatArray
    step: Any


class Cell:
    """What all cells share: weights, the hoisted products, and the textbook step.

    Parameters
    ----------
    input_size, hidden_size : int
    seed : int
        Decides the start values: Xavier for `weight_ih`, orthogonal for `weight_hh`, zero biases.
    dtype : type
        Of the weights.

    Attributes
    ----------
    parameters : dict of arrays
        `weight_ih` (G·H, I), `weight_hh` (G·H, H), `bias_ih` and `bias_hh` (G·H,).
    """

    num_gates: ClassVar[int] = 1
    state_type: ClassVar[type[CellState]] = HiddenState
    start_bias: ClassVar[Initialiser] = Constant()

    def __init__(self, input_size: int, hidden_size: int, *, seed: int = 0, dtype: DTypeLike = np.float64) -> None:
        rows = self.num_gates * hidden_size
        inventory = (
            Parameter("weight_ih", (rows, input_size), Xavier(self.num_gates)),
            Parameter("weight_hh", (rows, hidden_size), Orthogonal(self.num_gates)),
            Parameter("bias_ih", (rows,), self.start_bias),
            Parameter("bias_hh", (rows,), Constant()),
        )
        self._keep({name: weight.astype(dtype) for name, weight in initialise(inventory, seed).items()})

    @classmethod
    def from_parameters(cls, parameters: Weights) -> Self:
        """Cell with these weights; they are kept, not copied.

        Raises
        ------
        ShapeError
            If `weight_hh` is not (G·H, H) for this kind of cell.
        """
        rows, hidden_size = parameters["weight_hh"].shape
        if rows != cls.num_gates * hidden_size:
            expected = f"({cls.num_gates * hidden_size}, {hidden_size})"
            raise ShapeError(f"weight_hh of {cls.__name__} must have shape {expected}, got ({rows}, {hidden_size})")
        cell = cls.__new__(cls)
        cell._keep(parameters)
        return cell

    def _keep(self, parameters: Weights) -> None:
        self.parameters = dict(parameters)
        self.weight_ih, self.weight_hh = parameters["weight_ih"], parameters["weight_hh"]
        self.bias_ih, self.bias_hh = parameters["bias_ih"], parameters["bias_hh"]
        self.hidden_size = self.weight_hh.shape[1]

    def zero_state(self, batch_size: int) -> Any:
        """State of zeros, (B, H)."""
        zeros = np.zeros((batch_size, self.hidden_size), self.weight_hh.dtype)
        return self.state_type(*[zeros] * len(self.state_type._fields))

    def example_inputs(self, rng: np.random.Generator) -> tuple[FloatArray, ...]:
        """Random x (3, I) and state (3, H) for `gradient_check`."""
        sizes = [self.weight_ih.shape[1], *[self.hidden_size] * len(self.state_type._fields)]
        return tuple(rng.normal(size=(3, size)) for size in sizes)

    # --- the two parts of a step, and their way back -----------------------------------------------------------------

    def input_part(self, x: FloatArray) -> FloatArray:
        """``x W_ihᵀ + b_ih + b_hh``: (..., I) → (..., G·H)."""
        return linear_forward(self._checked(x), self.weight_ih, self.bias_ih + self.bias_hh)[0]

    def _checked(self, x: FloatArray) -> FloatArray:
        input_size = self.weight_ih.shape[1]
        if x.shape[-1] != input_size:
            name = type(self).__name__
            raise ShapeError(f"the last axis of x must be the input_size {input_size} of {name}, got shape {x.shape}")
        return x

    def step(self, gates: FloatArray, state: Any) -> tuple[Any, Any]:
        """Next state and a cache, from the input part of the gates (B, G·H), which is overwritten."""
        raise NotImplementedError

    def step_backward(self, d_state: Any, cache: Any) -> StepGradients:
        """Gradients of one step, from that of its new state."""
        raise NotImplementedError

    def gradients(
        self, x: FloatArray, d_input: FloatArray, d_recurrent: FloatArray, caches: list[Any]
    ) -> tuple[FloatArray, Gradients]:
        """Gradients of the inputs and weights, from those of all T steps, in one product each.

        Parameters
        ----------
        x : (T, B, I) array
        d_input, d_recurrent : (T, B, G·H) arrays
        caches : list
            One a step, as `step` returned them.

        Returns
        -------
        d_x : (T, B, I) array
        gradients : dict of arrays
        """
        d_x, d_weight_ih, d_bias_ih = linear_backward(d_input, LinearCache(x, self.weight_ih))
        flat = d_recurrent.reshape(-1, d_recurrent.shape[-1])  # (T·B, G·H)
        return d_x, {
            "weight_ih": d_weight_ih,
            "weight_hh": self._recurrent_weight_gradient(flat, caches),
            "bias_ih": d_bias_ih,
            "bias_hh": d_bias_ih.copy() if d_recurrent is d_input else flat.sum(axis=0),
        }

    def _recurrent_weight_gradient(self, d_recurrent: FloatArray, caches: list[Any]) -> FloatArray:
        """``d_W_hh = Σ_t d_recurrent_tᵀ h_{t−1}``."""
        d_weight: FloatArray = d_recurrent.T @ np.concatenate([cache.h for cache in caches])
        return d_weight

    # --- one step as in a textbook -----------------------------------------------------------------------------------

    def _forward(self, x: FloatArray, state: Any) -> tuple[Any, CellCache]:
        expected = (len(x), self.hidden_size)
        for name, part in state._asdict().items():
            if part.shape != expected:
                raise ShapeError(f"{name} of {type(self).__name__} must have shape {expected}, got {part.shape}")
        state, cache = self.step(self.input_part(x), state)
        return state, CellCache(x, cache)

    def _backward(self, d_state: Any, cache: CellCache) -> tuple[FloatArray, Any, Gradients]:
        d_input, d_recurrent, d_state = self.step_backward(d_state, cache.step)
        d_x, gradients = self.gradients(cache.x, d_input, d_recurrent, [cache.step])
        return d_x, d_state, gradients


class HiddenCell(Cell):
    """A cell whose state is h alone."""

    def forward(self, x: FloatArray, h: FloatArray) -> tuple[FloatArray, CellCache]:
        """One step: x (B, I) and h (B, H) → the next h (B, H), and a cache."""
        state, cache = self._forward(x, HiddenState(h))
        return state.h, cache

    def backward(self, d_h: FloatArray, cache: CellCache) -> tuple[FloatArray, FloatArray, Gradients]:
        """∂L/∂x, ∂L/∂h and parameter gradients, from ∂L/∂ of the next h."""
        d_x, d_state, gradients = self._backward(HiddenState(d_h), cache)
        return d_x, d_state.h, gradients


def blocks(gates: FloatArray, numblocks: int) -> list[FloatArray]:
    """Views of stacked gates: (B, G·H) → G of (B, H)."""
    H = gates.shape[1] // numblocks
    return [gates[:, block * H : (block + 1) * H] for block in range(numblocks)]
