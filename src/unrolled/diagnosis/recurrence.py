"""Recurrent layers opened up: states, gates and Jacobians of every step, from any module's weights.

`nn.LSTM` and its like run all steps inside one kernel. `opened` replaces what such a layer returns by the same values
computed one step at a time with the layer's own weights, so that every state is part of the graph and every ∂s_t/∂s_k
can be looked at. A state s is h for RNN and GRU and [h; c] for LSTM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn.functional import embedding, linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from unrolled.diagnosis.adapter import Subject
from unrolled.diagnosis.trace import hooked

__all__ = ["Direction", "Run", "Weights", "directions", "gates", "opened", "step", "step_jacobians"]

CELLS = {4: "lstm", 3: "gru", 1: "rnn"}


@dataclass(frozen=True)
class Weights:
    """Weights of one direction of one layer, gates stacked as in PyTorch (LSTM i f g o, GRU r z n)."""

    cell: str
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
    def state_size(self) -> int:
        """Length of s: 2H for LSTM, else H."""
        return self.hidden_size * (2 if self.cell == "lstm" else 1)


@dataclass(frozen=True)
class Direction:
    """One direction of one recurrent layer of a model."""

    name: str
    weights: Weights
    is_backward: bool = False


@dataclass
class Run:
    """What one direction read and did in one run, in its own order of steps.

    Attributes
    ----------
    inputs : list of Tensor
        T of them, `(B, E)`.
    start : Tensor
        `(B, s)`.
    states : list of Tensor
        After each step, `(B, s)`, each a node of the graph that leads to the logits.
    lengths : Tensor
        Real steps of each row, `(B,)`.
    """

    direction: Direction
    start: Tensor
    lengths: Tensor
    inputs: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def advance(self, x: Tensor, state: Tensor) -> Tensor:
        """Take one step and keep it."""
        self.inputs.append(x)
        self.states.append(step(self.direction.weights, x, state))
        return self.states[-1]

    def last(self) -> Tensor:
        """Each row's last real state, `(B, s)`."""
        stacked = torch.stack([self.start, *self.states])  # (1 + T, B, s)
        return stacked[self.lengths.to(stacked.device), torch.arange(len(self.lengths))]


def directions(module: nn.Module | None) -> list[Direction]:
    """All recurrent weights of a model: PyTorch's layers and cells, and ours."""
    found: list[Direction] = []
    for name, part in [] if module is None else module.named_modules():
        if isinstance(part, nn.RNNBase) and part.proj_size == 0:
            found += _of_layer(name, part)
        elif _is_cell(part):
            found.append(Direction(name, _weights(part, "", _is_relu(part)), name.endswith(".bwd")))
    return found


def _is_cell(part: nn.Module) -> bool:
    weight = getattr(part, "weight_hh", None)
    return isinstance(weight, Tensor) and weight.dim() == 2 and weight.shape[0] // weight.shape[1] in CELLS


def _is_relu(part: nn.Module) -> bool:
    return getattr(part, "nonlinearity", None) == "relu" or getattr(part, "mode", None) == "RNN_RELU"


def _of_layer(name: str, part: nn.RNNBase) -> Iterator[Direction]:
    for layer in range(part.num_layers):
        for suffix in ("", "_reverse")[: 2 if part.bidirectional else 1]:
            weights = _weights(part, f"_l{layer}{suffix}", _is_relu(part))
            yield Direction(f"{name}.l{layer}{suffix}".lstrip("."), weights, suffix == "_reverse")


def _weights(part: nn.Module, suffix: str, is_relu: bool) -> Weights:
    w_ih, w_hh = getattr(part, f"weight_ih{suffix}"), getattr(part, f"weight_hh{suffix}")
    biases = [getattr(part, f"bias_{kind}{suffix}", None) for kind in ("ih", "hh")]
    b_ih, b_hh = [bias if isinstance(bias, Tensor) else w_hh.new_zeros(len(w_hh)) for bias in biases]
    return Weights(CELLS[w_hh.shape[0] // w_hh.shape[1]], w_ih, w_hh, b_ih, b_hh, is_relu)


# --- one step --------------------------------------------------------------------------------------------------------


def gates(weights: Weights, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """Gate values of one step, `(..., H)` each: LSTM (i, f, g, o), GRU (r, z, n), RNN (h',)."""
    from_x, from_h = linear(x, weights.w_ih, weights.b_ih), linear(h, weights.w_hh, weights.b_hh)
    if weights.cell == "lstm":
        i, f, g, o = (from_x + from_h).chunk(4, -1)
        return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    if weights.cell == "gru":
        (x_r, x_z, x_n), (h_r, h_z, h_n) = from_x.chunk(3, -1), from_h.chunk(3, -1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        return r, z, (x_n + r * h_n).tanh()
    total = from_x + from_h
    return (total.relu() if weights.is_relu else total.tanh(),)


def step(weights: Weights, x: Tensor, state: Tensor) -> Tensor:
    """The state after one step, `(..., state_size)`."""
    if weights.cell == "lstm":
        h, c = state.chunk(2, -1)
        i, f, g, o = gates(weights, x, h)
        c = f * c + i * g
        return torch.cat([o * c.tanh(), c], -1)
    if weights.cell == "gru":
        _, z, n = gates(weights, x, state)
        return (1 - z) * n + z * state
    return gates(weights, x, state)[0]


def step_jacobians(weights: Weights, inputs: Tensor, states: Tensor) -> Tensor:
    """∂s_t/∂s_(t−1) of each step: `(T, E)` and the states before each step `(T, s)` give `(T, s, s)`."""
    jacobian = jacrev(lambda state, x: step(weights, x, state))
    jacobians: Tensor = vmap(jacobian)(states, inputs)
    return jacobians


# --- a model's layers, opened ----------------------------------------------------------------------------------------


@contextmanager
def opened(subject: Subject) -> Iterator[list[Run]]:
    """Step through every recurrent layer during a block; the runs fill up as the model runs."""
    runs: list[Run] = []
    parts = dict([] if subject.module is None else subject.module.named_modules())
    known = {direction.name: direction for direction in directions(subject.module)}

    def replace(name: str, args: Any, output: Any) -> Any:
        part = parts[name]
        if isinstance(part, nn.RNNBase) and part.proj_size == 0:
            return _open_layer(name, part, args, known, runs)
        if isinstance(part, nn.RNNCellBase):
            return _open_cell(known[name], args, output, runs)
        if hasattr(part, "directions") and hasattr(part, "cell"):
            return _open_ours(name, part, args, output, known, runs)
        return None

    with hooked(subject, replace):
        yield runs


def _open_layer(name: str, part: nn.RNNBase, args: Any, known: dict[str, Direction], runs: list[Run]) -> Any:
    """One call of `nn.RNN`, `nn.LSTM` or `nn.GRU`: all its layers and directions."""
    (given, *rest), options = args
    hx = rest[0] if rest else options.get("hx")
    x, lengths = _batch_first(given, part)
    D, H, finals = 2 if part.bidirectional else 1, part.hidden_size, []
    for layer in range(part.num_layers):
        outputs = []
        for place, suffix in enumerate(("", "_reverse")[:D]):
            direction = known[f"{name}.l{layer}{suffix}".lstrip(".")]
            start = _start(hx, layer * D + place, len(x), direction.weights)
            run = _continued(runs, direction, start, lengths)
            outputs.append(_run_over(run, x)[..., :H])
            finals.append(run.last())
        x = torch.cat(outputs, -1)  # (B, T, D·H)
    final = torch.stack(finals)  # (L·D, B, s)
    is_single = not isinstance(given, PackedSequence) and given.dim() == 2
    state = final[:, 0] if is_single else final
    return _as_given(x, given, part, lengths), tuple(state.chunk(2, -1)) if part.mode == "LSTM" else state


def _batch_first(given: Any, part: nn.RNNBase) -> tuple[Tensor, Tensor]:
    if isinstance(given, PackedSequence):
        return pad_packed_sequence(given, batch_first=True)
    x = given[None] if given.dim() == 2 else given if part.batch_first else given.transpose(0, 1)
    return x, torch.full((len(x),), x.shape[1])


def _as_given(x: Tensor, given: Any, part: nn.RNNBase, lengths: Tensor) -> Any:
    if isinstance(given, PackedSequence):
        return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return x[0] if given.dim() == 2 else x if part.batch_first else x.transpose(0, 1)


def _continued(runs: list[Run], direction: Direction, start: Tensor, lengths: Tensor) -> Run:
    """A new run; or the one before, for a layer that is called on one step at a time."""
    for run in reversed(runs):
        if run.direction is direction and run.states and bool((lengths == 1).all()):
            if run.states[-1].shape == start.shape and torch.equal(run.states[-1], start):
                run.lengths = run.lengths + 1
                return run
            break
    runs.append(Run(direction, start, lengths))
    return runs[-1]


def _run_over(run: Run, x: Tensor) -> Tensor:
    """States of a run over inputs in the order of the text, back in that order: (B, T, s)."""
    is_backward = run.direction.is_backward
    own = _mirrored(x, run.lengths) if is_backward else x
    state = run.states[-1] if run.states else run.start
    states = []
    for step_input in own.unbind(1):
        state = run.advance(step_input, state)
        states.append(state)
    stacked = torch.stack(states, 1)
    return _mirrored(stacked, run.lengths) if is_backward else stacked


def _start(hx: Any, place: int, rows: int, weights: Weights) -> Tensor:
    if hx is None:
        return weights.w_hh.new_zeros(rows, weights.state_size)
    parts = [part[place].reshape(rows, -1) for part in (hx if isinstance(hx, tuple | list) else [hx])]
    return torch.cat(parts, -1)


def _mirrored(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row reversed within its length, padding left in place: (B, T, E)."""
    steps, last = torch.arange(x.shape[1]), lengths[:, None] - 1
    order = torch.where(steps <= last, last - steps, steps).to(x.device)
    return x.gather(1, order[..., None].expand_as(x))


def _open_cell(direction: Direction, args: Any, output: Any, runs: list[Run]) -> Any:
    """One call of a cell, one step."""
    (x, *rest), options = args
    hx = rest[0] if rest else options.get("hx")
    parts = [] if hx is None else list(hx) if isinstance(hx, tuple | list) else [hx]
    start = torch.cat(parts, -1) if parts else x.new_zeros(len(x), direction.weights.state_size)
    if x.dim() == 1:
        return None
    run = _continued(runs, direction, start, torch.ones(len(x), dtype=torch.long))
    state = run.advance(x, start)
    return tuple(state.chunk(2, -1)) if isinstance(output, tuple) else state


def _open_ours(name: str, part: Any, args: Any, output: Any, known: dict[str, Direction], runs: list[Run]) -> Any:
    """One call of a layer of `unrolled.models`: its directions side by side."""
    inputs, start, ragged = (*args[0], None, None)[:3]
    x = inputs
    if not isinstance(x, Tensor):
        x = embedding(inputs.ids, inputs.table)
        x = x if inputs.offset is None else x + inputs.offset[:, None]
    lengths = torch.full((len(x),), x.shape[1]) if ragged is None else ragged.lengths
    outputs, finals = [], []
    for place, suffix in enumerate((".fwd", ".bwd")[: len(part.directions)]):
        direction = known[name + suffix]
        H = direction.weights.hidden_size
        own = [state[:, place * H : (place + 1) * H] for state in start or ()]
        first = torch.cat(own, -1) if own else x.new_zeros(len(x), direction.weights.state_size)
        run = _continued(runs, direction, first, lengths)
        outputs.append(_run_over(run, x)[..., :H])
        finals.append(run.last().chunk(len(output[1]), -1))
    return torch.cat(outputs, -1), type(output[1])(*(torch.cat(part, -1) for part in zip(*finals, strict=True)))
