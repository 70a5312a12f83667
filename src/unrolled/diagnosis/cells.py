"""One step of every recurrent cell, as a function of its state alone: gates, next state, Jacobian.

A state s is h for plain cells and GRU, and [h; c] for LSTM. The input part of the gates, with all biases that are
added outside of a gate, is given: it does not depend on the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.nn.functional import linear

__all__ = ["Cell", "Weights", "gates", "input_part", "step", "step_jacobians"]

Cell = Literal["lstm", "lstm_ungated", "gru", "gru_before", "rnn"]
GATES: dict[Cell, tuple[str, ...]] = {
    "lstm": ("input gate", "forget gate", "candidate", "output gate"),
    "lstm_ungated": ("input gate", "candidate", "output gate"),
    "gru": ("reset gate", "update gate", "candidate"),
    "gru_before": ("reset gate", "update gate", "candidate"),
    "rnn": ("state",),
}
"""Gates in the order in which weights are stacked (LSTM i f g o, GRU r z n)."""


@dataclass(frozen=True)
class Weights:
    """Weights of one direction of one layer: `w_ih (G·H, E)`, `w_hh (G·H, H)`, biases `(G·H,)`."""

    cell: Cell
    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor
    b_hh: Tensor
    is_relu: bool = False

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.w_hh.shape[1]

    @property
    def is_lstm(self) -> bool:
        """Whether the state is [h; c]."""
        return self.cell in ("lstm", "lstm_ungated")

    @property
    def state_size(self) -> int:
        """Length of s."""
        return self.hidden_size * (2 if self.is_lstm else 1)


def input_part(weights: Weights, x: Tensor) -> Tensor:
    """What an input adds to all gates, `(..., G·H)`; a GRU that resets after the product keeps `b_hh` inside."""
    bias = weights.b_ih if weights.cell == "gru" else weights.b_ih + weights.b_hh
    return linear(x, weights.w_ih, bias)


def gates(weights: Weights, from_input: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """Gate values of one step in the order of `GATES`, `(..., H)` each."""
    if weights.cell == "gru_before":
        x_r, x_z, x_n = from_input.chunk(3, -1)
        w_r, w_z, w_n = weights.w_hh.chunk(3)
        r, z = (x_r + linear(h, w_r)).sigmoid(), (x_z + linear(h, w_z)).sigmoid()
        return r, z, (x_n + linear(r * h, w_n)).tanh()
    if weights.cell == "gru":
        (x_r, x_z, x_n), (h_r, h_z, h_n) = (
            part.chunk(3, -1) for part in (from_input, linear(h, weights.w_hh, weights.b_hh))
        )
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        return r, z, (x_n + r * h_n).tanh()
    total = from_input + linear(h, weights.w_hh)
    if weights.cell == "rnn":
        return (total.relu() if weights.is_relu else total.tanh(),)
    names = GATES[weights.cell]
    parts = zip(names, total.chunk(len(names), -1), strict=True)
    return tuple(part.tanh() if name == "candidate" else part.sigmoid() for name, part in parts)


def step(weights: Weights, from_input: Tensor, state: Tensor) -> Tensor:
    """The state after one step, `(..., state_size)`."""
    if weights.is_lstm:
        h, c = state.chunk(2, -1)
        i, *forget, g, o = gates(weights, from_input, h)
        c = (forget[0] * c if forget else c) + i * g
        return torch.cat([o * c.tanh(), c], -1)
    if weights.cell == "rnn":
        return gates(weights, from_input, state)[0]
    _, z, n = gates(weights, from_input, state)
    return (1 - z) * n + z * state


def step_jacobians(weights: Weights, from_input: Tensor, states: Tensor) -> Tensor:
    """∂s_t/∂s_(t−1) of each step: inputs `(T, G·H)` and the states before each step `(T, s)` give `(T, s, s)`."""
    jacobian = jacrev(lambda state, part: step(weights, part, state))
    jacobians: Tensor = vmap(jacobian)(states, from_input)
    return jacobians
