"""Recurrent cells: one step forward, one step back.

Axes: B batch, I inputs, H hidden, G·H stacked gates. Numbers in brackets tie each line on the way back to the line on
the way forth that it undoes.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from unrolled import config
from unrolled.parameters import Constant, ForgetBias, Initialiser
from unrolled.reference.cell import Cell, CellCache, HiddenCell, StepGradients, blocks
from unrolled.reference.layer import FloatArray, Gradients
from unrolled.reference.ops import few_rows_product, linear_forward, sigmoid
from unrolled.reference.states import HiddenState, LSTMState

__all__ = [
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "ReLURNNCell",
    "ResetBeforeGRUCell",
    "UngatedLSTMCell",
    "cell_type",
]


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
        gates += few_rows_product(state.h, self.weight_hh)  # (1)
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
        gates += few_rows_product(state.h, self.weight_hh)  # (1)
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
        gates += few_rows_product(h, self.weight_hh)  # (1)
        i, f, g, o = blocks(gates, 4)
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
        i, f, g, o = blocks(gates, 4)
        d_gates = np.empty_like(gates)
        d_i, d_f, d_g, d_o = blocks(d_gates, 4)
        np.multiply(d_h, tanh_c, out=d_o)  # (5)
        d_c = d_c_next + d_h * o * (1.0 - tanh_c * tanh_c)  # (5), (4)
        np.multiply(d_c, g, out=d_i)  # (3)
        np.multiply(d_c, c, out=d_f)  # (3)
        np.multiply(d_c, i, out=d_g)  # (3)
        slope = gates * (1.0 - gates)  # (2) σ' = σ (1 − σ)
        np.subtract(1.0, g * g, out=blocks(slope, 4)[2])  # (2) tanh' = 1 − tanh²
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
        gates += few_rows_product(h, self.weight_hh)  # (1)
        i, g, o = blocks(gates, 3)
        i[:], g[:], o[:] = sigmoid(i), np.tanh(g), sigmoid(o)  # (2)
        c_next = c + i * g  # (3)
        tanh_c: FloatArray = np.tanh(c_next)  # (4)
        return LSTMState(o * tanh_c, c_next), LSTMCache(h, c, gates, tanh_c)  # (5)

    def step_backward(self, d_state: LSTMState, cache: LSTMCache) -> StepGradients:
        """Gradients of one step."""
        d_h, d_c_next = d_state
        i, g, o = blocks(cache.gates, 3)
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
        return linear_forward(self._checked(x), self.weight_ih, self.bias_ih)[0]

    def step(self, gates: FloatArray, state: HiddenState) -> tuple[HiddenState, GRUCache]:
        """Next state and cache."""
        h = state.h
        H = self.hidden_size
        recurrent = few_rows_product(h, self.weight_hh) + self.bias_hh  # (1)
        recurrent_n = recurrent[:, 2 * H :]
        r, z = blocks(sigmoid(gates[:, : 2 * H] + recurrent[:, : 2 * H]), 2)  # (2)
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
        r, z = blocks(sigmoid(gates[:, : 2 * H] + few_rows_product(h, weight_rz)), 2)  # (1)
        n: FloatArray = np.tanh(gates[:, 2 * H :] + few_rows_product(r * h, weight_n))  # (2)
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


def cell_type(settings: config.Cells) -> type[Cell]:
    """The kind of cell that the settings ask for."""
    if settings.cell == "lstm":
        return LSTMCell if settings.forget_gate else UngatedLSTMCell
    if settings.cell == "gru":
        return GRUCell if settings.reset == "after" else ResetBeforeGRUCell
    return RNNCell if settings.nonlinearity == "tanh" else ReLURNNCell
