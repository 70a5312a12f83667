"""Recurrent cells: one step forward, one step back.

A step is cut in two, because only one part is sequential. The input part of the gates, ``x W_ihᵀ + b``, is a product
that the driver (`recurrence`) forms for all steps at once before its loop; `step` adds the recurrent part, ``h W_hhᵀ``,
and does the rest. On the way back `step_backward` returns the gradients of both parts, and `gradients` turns those of
all steps into weight gradients with one product. `forward` and `backward` are a single step as in a textbook.

Axes: T steps, B batch, I inputs, H hidden, G·H stacked gates. Numbers in brackets tie each line on the way back to the
line on the way forth that it undoes.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from unrolled import config
from unrolled.errors import ShapeError
from unrolled.parameters import Constant, ForgetBias, Initialiser, Orthogonal, Parameter, Xavier, initialise
from unrolled.reference.layer import FloatArray, Gradients, Weights
from unrolled.reference.ops import linear_backward, linear_forward, sigmoid
from unrolled.reference.states import CellState, HiddenState, LSTMState

__all__ = [
    "Cell",
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "ReLURNNCell",
    "ResetBeforeGRUCell",
    "StepGradients",
    "UngatedLSTMCell",
    "cell_type",
]


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

    Attributes
    ----------
    parameters : dict of arrays
        `weight_ih` (G·H, I), `weight_hh` (G·H, H), `bias_ih` and `bias_hh` (G·H,).
    """

    num_gates: ClassVar[int] = 1
    state_type: ClassVar[type[CellState]] = HiddenState
    start_bias: ClassVar[Initialiser] = Constant()

    def __init__(self, input_size: int, hidden_size: int, *, seed: int = 0) -> None:
        rows = self.num_gates * hidden_size
        inventory = (
            Parameter("weight_ih", (rows, input_size), Xavier(self.num_gates)),
            Parameter("weight_hh", (rows, hidden_size), Orthogonal(self.num_gates)),
            Parameter("bias_ih", (rows,), self.start_bias),
            Parameter("bias_hh", (rows,), Constant()),
        )
        self._keep(initialise(inventory, seed))

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

    # --- the two parts of a step, and their way back -----------------------------------------------------------------

    def input_part(self, x: FloatArray) -> FloatArray:
        """``x W_ihᵀ + b_ih + b_hh``: (..., I) → (..., G·H)."""
        return linear_forward(x, self.weight_ih, self.bias_ih + self.bias_hh)[0]

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
        d_x, d_weight_ih, d_bias_ih = linear_backward(d_input, linear_forward(x, self.weight_ih)[1])
        flat = d_recurrent.reshape(-1, d_recurrent.shape[-1])  # (T·B, G·H)
        return d_x, {
            "weight_ih": d_weight_ih,
            "weight_hh": self._recurrent_weight_gradient(flat, caches),
            "bias_ih": d_bias_ih,
            "bias_hh": flat.sum(axis=0),
        }

    def _recurrent_weight_gradient(self, d_recurrent: FloatArray, caches: list[Any]) -> FloatArray:
        """``d_W_hh = Σ_t d_recurrent_tᵀ h_{t−1}``."""
        d_weight: FloatArray = d_recurrent.T @ np.concatenate([cache.h for cache in caches])
        return d_weight

    # --- one step as in a textbook -----------------------------------------------------------------------------------

    def _forward(self, x: FloatArray, state: Any) -> tuple[Any, CellCache]:
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


def _blocks(gates: FloatArray, num_blocks: int) -> list[FloatArray]:
    """Views of stacked gates: (B, G·H) → G of (B, H)."""
    H = gates.shape[1] // num_blocks
    return [gates[:, block * H : (block + 1) * H] for block in range(num_blocks)]


# --- simple recurrent cell -------------------------------------------------------------------------------------------


class RNNCache(NamedTuple):
    """What one step of `RNNCell` keeps."""

    h: FloatArray
    h_next: FloatArray


class RNNCell(HiddenCell):
    """``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`` (Elman 1990).

    Parameters
    ----------
    input_size, hidden_size : int
    seed : int
        Decides the start values.
    """

    def step(self, gates: FloatArray, state: HiddenState) -> tuple[HiddenState, RNNCache]:
        """Next state and cache."""
        gates += state.h @ self.weight_hh.T  # (1)
        h_next: FloatArray = np.tanh(gates)  # (2)
        return HiddenState(h_next), RNNCache(state.h, h_next)

    def step_backward(self, d_state: HiddenState, cache: RNNCache) -> StepGradients:
        """Gradients of one step."""
        d_gates = d_state.h * (1.0 - cache.h_next * cache.h_next)  # (2)
        return StepGradients(d_gates, d_gates, HiddenState(d_gates @ self.weight_hh))  # (1)


class ReLURNNCell(RNNCell):
    """``h' = max(W_ih x + b_ih + W_hh h + b_hh, 0)``.

    Parameters
    ----------
    input_size, hidden_size : int
    seed : int
        Decides the start values.
    """

    def step(self, gates: FloatArray, state: HiddenState) -> tuple[HiddenState, RNNCache]:
        """Next state and cache."""
        gates += state.h @ self.weight_hh.T  # (1)
        h_next: FloatArray = np.maximum(gates, 0.0)  # (2)
        return HiddenState(h_next), RNNCache(state.h, h_next)

    def step_backward(self, d_state: HiddenState, cache: RNNCache) -> StepGradients:
        """Gradients of one step."""
        d_gates = d_state.h * (cache.h_next > 0.0)  # (2)
        return StepGradients(d_gates, d_gates, HiddenState(d_gates @ self.weight_hh))  # (1)


# --- LSTM ------------------------------------------------------------------------------------------------------------


class LSTMCache(NamedTuple):
    """What one step of an LSTM keeps: the state before it, the activated gates, and ``tanh(c')``."""

    h: FloatArray
    c: FloatArray
    gates: FloatArray
    tanh_c: FloatArray


class LSTMCell(Cell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    ``i, f, o = σ(W x + U h + b)``, ``g = tanh(…)``; ``c' = f ⊙ c + i ⊙ g``, ``h' = o ⊙ tanh(c')``. Gates are stacked
    i f g o.

    Parameters
    ----------
    input_size, hidden_size : int
    seed : int
        Decides the start values; the effective forget bias is +1.
    """

    num_gates = 4
    state_type = LSTMState
    start_bias: ClassVar[Initialiser] = ForgetBias()

    def step(self, gates: FloatArray, state: LSTMState) -> tuple[LSTMState, LSTMCache]:
        """Next state and cache."""
        h, c = state
        gates += h @ self.weight_hh.T  # (1)
        i, f, g, o = _blocks(gates, 4)
        both = gates[:, : 2 * self.hidden_size]
        sigmoid(both, out=both)  # (2) i and f
        np.tanh(g, out=g)  # (2)
        sigmoid(o, out=o)  # (2)
        c_next = f * c  # (3)
        c_next += i * g  # (3)
        tanh_c: FloatArray = np.tanh(c_next)  # (4)
        return LSTMState(o * tanh_c, c_next), LSTMCache(h, c, gates, tanh_c)  # (5)

    def step_backward(self, d_state: LSTMState, cache: LSTMCache) -> StepGradients:
        """Gradients of one step."""
        d_h, d_c_next = d_state
        _, c, gates, tanh_c = cache
        i, f, g, o = _blocks(gates, 4)
        d_gates = np.empty_like(gates)
        d_i, d_f, d_g, d_o = _blocks(d_gates, 4)
        np.multiply(d_h, tanh_c, out=d_o)  # (5)
        d_c = d_c_next + d_h * o * (1.0 - tanh_c * tanh_c)  # (5), (4)
        np.multiply(d_c, g, out=d_i)  # (3)
        np.multiply(d_c, c, out=d_f)  # (3)
        np.multiply(d_c, i, out=d_g)  # (3)
        slope = gates * (1.0 - gates)  # (2) σ' = σ (1 − σ)
        np.subtract(1.0, g * g, out=_blocks(slope, 4)[2])  # (2) tanh' = 1 − tanh²
        d_gates *= slope
        return StepGradients(d_gates, d_gates, LSTMState(d_gates @ self.weight_hh, d_c * f))  # (1), (3)

    def forward(self, x: FloatArray, h: FloatArray, c: FloatArray) -> tuple[LSTMState, CellCache]:
        """One step: x (B, I), h and c (B, H) → the next state (h, c), and a cache."""
        stepped: tuple[LSTMState, CellCache] = self._forward(x, LSTMState(h, c))
        return stepped

    def backward(
        self, d_h: FloatArray, d_c: FloatArray, cache: CellCache
    ) -> tuple[FloatArray, FloatArray, FloatArray, Gradients]:
        """∂L/∂x, ∂L/∂h, ∂L/∂c and parameter gradients, from ∂L/∂ of the next h and c."""
        d_x, d_state, gradients = self._backward(LSTMState(d_h, d_c), cache)
        return d_x, d_state.h, d_state.c, gradients


class UngatedLSTMCell(LSTMCell):
    """The LSTM of 1997, without a forget gate: ``c' = c + i ⊙ g``, so that ``∂c'/∂c = I`` directly; gates i g o.

    Parameters
    ----------
    input_size, hidden_size : int
    seed : int
        Decides the start values.
    """

    num_gates = 3
    start_bias: ClassVar[Initialiser] = Constant()

    def step(self, gates: FloatArray, state: LSTMState) -> tuple[LSTMState, LSTMCache]:
        """Next state and cache."""
        h, c = state
        gates += h @ self.weight_hh.T  # (1)
        i, g, o = _blocks(gates, 3)
        i[:], g[:], o[:] = sigmoid(i), np.tanh(g), sigmoid(o)  # (2)
        c_next = c + i * g  # (3)
        tanh_c: FloatArray = np.tanh(c_next)  # (4)
        return LSTMState(o * tanh_c, c_next), LSTMCache(h, c, gates, tanh_c)  # (5)

    def step_backward(self, d_state: LSTMState, cache: LSTMCache) -> StepGradients:
        """Gradients of one step."""
        d_h, d_c_next = d_state
        i, g, o = _blocks(cache.gates, 3)
        d_c = d_c_next + d_h * o * (1.0 - cache.tanh_c * cache.tanh_c)  # (5), (4)
        d_i, d_g = d_c * g * i * (1.0 - i), d_c * i * (1.0 - g * g)  # (3), (2)
        d_o = d_h * cache.tanh_c * o * (1.0 - o)  # (5), (2)
        d_gates = np.concatenate([d_i, d_g, d_o], axis=1)
        return StepGradients(d_gates, d_gates, LSTMState(d_gates @ self.weight_hh, d_c))  # (1), (3)


# --- GRU -------------------------------------------------------------------------------------------------------------


class GRUCache(NamedTuple):
    """What one step of a GRU keeps: h before it, the activated gates, and the recurrent part of n."""

    h: FloatArray
    r: FloatArray
    z: FloatArray
    n: FloatArray
    recurrent_n: FloatArray


class GRUCell(HiddenCell):
    """Gated recurrent unit, reset after the recurrent product, as in cuDNN and PyTorch (after Cho et al. 2014).

    ``r, z = σ(W x + b_ih + U h + b_hh)``, ``n = tanh(W_n x + b_in + r ⊙ (U_n h + b_hn))``;
    ``h' = (1 − z) ⊙ n + z ⊙ h``. Gates are stacked r z n.

    Parameters
    ----------
    input_size, hidden_size : int
    seed : int
        Decides the start values.
    """

    num_gates = 3

    def input_part(self, x: FloatArray) -> FloatArray:
        """``x W_ihᵀ + b_ih``: (..., I) → (..., 3H); b_hh stays in the recurrent part, where r can reach it."""
        return linear_forward(x, self.weight_ih, self.bias_ih)[0]

    def step(self, gates: FloatArray, state: HiddenState) -> tuple[HiddenState, GRUCache]:
        """Next state and cache."""
        h = state.h
        H = self.hidden_size
        recurrent = h @ self.weight_hh.T + self.bias_hh  # (1)
        recurrent_n = recurrent[:, 2 * H :]
        r, z = _blocks(sigmoid(gates[:, : 2 * H] + recurrent[:, : 2 * H]), 2)  # (2)
        n: FloatArray = np.tanh(gates[:, 2 * H :] + r * recurrent_n)  # (3)
        return HiddenState(n + z * (h - n)), GRUCache(h, r, z, n, recurrent_n)  # (4)

    def step_backward(self, d_state: HiddenState, cache: GRUCache) -> StepGradients:
        """Gradients of one step."""
        d_h, (h, r, z, n, recurrent_n) = d_state.h, cache
        d_n = d_h * (1.0 - z) * (1.0 - n * n)  # (4), (3)
        d_z = d_h * (h - n) * z * (1.0 - z)  # (4), (2)
        d_r = d_n * recurrent_n * r * (1.0 - r)  # (3), (2)
        d_input = np.concatenate([d_r, d_z, d_n], axis=1)
        d_recurrent = np.concatenate([d_r, d_z, d_n * r], axis=1)  # (3)
        return StepGradients(d_input, d_recurrent, HiddenState(d_recurrent @ self.weight_hh + d_h * z))  # (1), (4)


class ResetBeforeGRUCache(NamedTuple):
    """What one step of `ResetBeforeGRUCell` keeps."""

    h: FloatArray
    r: FloatArray
    z: FloatArray
    n: FloatArray


class ResetBeforeGRUCell(HiddenCell):
    """The GRU as first published (Cho et al. 2014, eq. 5–8): reset before the recurrent product.

    ``n = tanh(W_n x + b_in + U_n (r ⊙ h) + b_hn)``, all else as in `GRUCell`. The two are different functions, and no
    change of weights turns one into the other.

    Parameters
    ----------
    input_size, hidden_size : int
    seed : int
        Decides the start values.

    Notes
    -----
    The paper's z weighs the old state, as here.
    """

    num_gates = 3

    def step(self, gates: FloatArray, state: HiddenState) -> tuple[HiddenState, ResetBeforeGRUCache]:
        """Next state and cache."""
        h = state.h
        H = self.hidden_size
        weight_rz, weight_n = self.weight_hh[: 2 * H], self.weight_hh[2 * H :]
        r, z = _blocks(sigmoid(gates[:, : 2 * H] + h @ weight_rz.T), 2)  # (1)
        n: FloatArray = np.tanh(gates[:, 2 * H :] + (r * h) @ weight_n.T)  # (2)
        return HiddenState(n + z * (h - n)), ResetBeforeGRUCache(h, r, z, n)  # (3)

    def step_backward(self, d_state: HiddenState, cache: ResetBeforeGRUCache) -> StepGradients:
        """Gradients of one step."""
        d_h, (h, r, z, n) = d_state.h, cache
        H = self.hidden_size
        weight_rz, weight_n = self.weight_hh[: 2 * H], self.weight_hh[2 * H :]
        d_n = d_h * (1.0 - z) * (1.0 - n * n)  # (3), (2)
        d_z = d_h * (h - n) * z * (1.0 - z)  # (3), (1)
        d_reset = d_n @ weight_n  # (2) ∂L/∂(r ⊙ h)
        d_rz = np.concatenate([d_reset * h * r * (1.0 - r), d_z], axis=1)  # (2), (1)
        d_gates = np.concatenate([d_rz, d_n], axis=1)
        d_previous = d_rz @ weight_rz + d_reset * r + d_h * z  # (1), (2), (3)
        return StepGradients(d_gates, d_gates, HiddenState(d_previous))

    def _recurrent_weight_gradient(self, d_recurrent: FloatArray, caches: list[ResetBeforeGRUCache]) -> FloatArray:
        """As in `Cell`, but the rows of n have met r ⊙ h."""
        H = self.hidden_size
        h = np.concatenate([cache.h for cache in caches])
        reset = np.concatenate([cache.r * cache.h for cache in caches])
        return np.concatenate([d_recurrent[:, : 2 * H].T @ h, d_recurrent[:, 2 * H :].T @ reset])


def cell_type(settings: config.Recurrent) -> type[Cell]:
    """The kind of cell that the settings ask for."""
    if settings.cell == "lstm":
        return LSTMCell if settings.forget_gate else UngatedLSTMCell
    if settings.cell == "gru":
        return GRUCell if settings.reset == "after" else ResetBeforeGRUCell
    return RNNCell if settings.nonlinearity == "tanh" else ReLURNNCell
