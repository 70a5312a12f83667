"""Recurrent layers opened up: the state of every step as part of the graph.

`nn.LSTM` and its like run all steps inside one kernel. `opened` replaces what such a layer returns by the same values
computed one step at a time with the layer's own weights, so that every ∂L/∂s_t and ∂s_t/∂s_k can be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from unrolled.diagnosis.adapter import Subject
from unrolled.diagnosis.cells import Cell, Weights, input_part, step
from unrolled.diagnosis.trace import hooked
from unrolled.models.recurrent import Gates, Layer, RecurrentLayers

__all__ = ["Direction", "Run", "directions", "opened"]


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
    start : Tensor
        `(B, s)`.
    lengths : Tensor
        Real steps of each row, `(B,)`.
    inputs : list of Tensor
        Input part of the gates at each of T steps, `(B, G·H)`.
    states : list of Tensor
        After each step, `(B, s)`, each a node of the graph that leads to the logits.
    """

    direction: Direction
    start: Tensor
    lengths: Tensor
    inputs: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def over(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Go on from a state over inputs `(B, T, G·H)` in the order of the text; the states in it, `(B, T, s)`."""
        own = mirrored(inputs, self.lengths) if self.direction.is_backward else inputs
        for part in own.unbind(1):
            state = step(self.direction.weights, part, state)
            self.inputs.append(part)
            self.states.append(state)
        states = torch.stack(self.states[-own.shape[1] :], 1)
        return mirrored(states, self.lengths) if self.direction.is_backward else states

    def last(self) -> Tensor:
        """Each row's last real state, `(B, s)`."""
        stacked = torch.stack([self.start, *self.states])  # (1 + T, B, s)
        return stacked[self.lengths.to(stacked.device), torch.arange(len(self.lengths))]


def mirrored(x: Tensor, lengths: Tensor) -> Tensor:
    """Each row reversed within its length, padding left in place: (B, T, E)."""
    steps, last = torch.arange(x.shape[1]), lengths.cpu()[:, None] - 1
    order = torch.where(steps <= last, last - steps, steps).to(x.device)
    return x.gather(1, order[..., None].expand_as(x))


# --- which weights there are -----------------------------------------------------------------------------------------


def directions(module: nn.Module | None) -> list[Direction]:
    """All recurrent weights of a model: layers and cells of PyTorch, and ours."""
    found: list[Direction] = []
    for name, part in [] if module is None else module.named_modules():
        if isinstance(part, nn.RNNBase) and part.proj_size == 0:
            found += _of_layer(name, part)
        elif isinstance(part, nn.RNNCellBase):
            kind: Cell = {4: "lstm", 3: "gru"}.get(part.weight_hh.shape[0] // part.hidden_size, "rnn")  # type: ignore[assignment]
            found.append(Direction(name, _weights(part, "", kind, getattr(part, "nonlinearity", "tanh"))))
        elif isinstance(part, RecurrentLayers):
            found += _of_ours(name, part)
    return found


def _of_layer(name: str, part: nn.RNNBase) -> Iterator[Direction]:
    kind: Cell = {"LSTM": "lstm", "GRU": "gru"}.get(part.mode, "rnn")  # type: ignore[assignment]
    for layer in range(part.num_layers):
        for suffix in ("", "_reverse")[: 2 if part.bidirectional else 1]:
            weights = _weights(part, f"_l{layer}{suffix}", kind, "relu" if part.mode == "RNN_RELU" else "tanh")
            yield Direction(_joined(name, f"l{layer}{suffix}"), weights, suffix == "_reverse")


def _of_ours(name: str, part: RecurrentLayers) -> Iterator[Direction]:
    for number, layer in enumerate(part):
        assert isinstance(layer, Layer)
        settings = layer.settings
        kind: Cell = settings.cell
        if kind == "lstm" and not settings.forget_gate:
            kind = "lstm_ungated"
        elif kind == "gru" and settings.reset == "before":
            kind = "gru_before"
        for place, direction in enumerate(layer.directions):
            weights = _weights(direction, "", kind, settings.nonlinearity)
            yield Direction(_joined(name, f"{number}.{('fwd', 'bwd')[place]}"), weights, place == 1)


def _weights(part: nn.Module, suffix: str, cell: Cell, nonlinearity: str) -> Weights:
    w_ih, w_hh = getattr(part, f"weight_ih{suffix}"), getattr(part, f"weight_hh{suffix}")
    biases = [getattr(part, f"bias_{kind}{suffix}", None) for kind in ("ih", "hh")]
    b_ih, b_hh = [bias if isinstance(bias, Tensor) else w_hh.new_zeros(len(w_hh)) for bias in biases]
    return Weights(cell, w_ih, w_hh, b_ih, b_hh, cell == "rnn" and nonlinearity == "relu")


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


# --- opened ----------------------------------------------------------------------------------------------------------


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
        if isinstance(part, RecurrentLayers):
            return _open_ours(name, part, args, output, known, runs)
        return None

    with hooked(subject, replace):
        yield runs


def _open_layer(name: str, part: nn.RNNBase, args: Any, known: dict[str, Direction], runs: list[Run]) -> Any:
    """One call of `nn.RNN`, `nn.LSTM` or `nn.GRU`: all its layers and directions."""
    given, hx = _given(args)
    x, lengths = _batch_first(given, part)
    D, H, finals = 2 if part.bidirectional else 1, part.hidden_size, []
    for layer in range(part.num_layers):
        outputs = []
        for place, suffix in enumerate(("", "_reverse")[:D]):
            direction = known[_joined(name, f"l{layer}{suffix}")]
            starts = None if hx is None else [state[layer * D + place].reshape(len(x), -1) for state in _as_list(hx)]
            start = _start(starts, x, direction.weights)
            run = _continued(runs, direction, start, lengths)
            outputs.append(run.over(input_part(direction.weights, x), start)[..., :H])
            finals.append(run.last())
        x = torch.cat(outputs, -1)  # (B, T, D·H)
    final = torch.stack(finals)  # (L·D, B, s)
    is_single = not isinstance(given, PackedSequence) and given.dim() == 2
    state = final[:, 0] if is_single else final
    return _as_given(x, given, part, lengths), tuple(state.chunk(2, -1)) if part.mode == "LSTM" else state


def _open_cell(direction: Direction, args: Any, output: Any, runs: list[Run]) -> Any:
    """One call of a cell, one step."""
    x, hx = _given(args)
    if x.dim() == 1:
        return None
    start = _start(None if hx is None else _as_list(hx), x, direction.weights)
    run = _continued(runs, direction, start, torch.ones(len(x), dtype=torch.long))
    state = run.over(input_part(direction.weights, x)[:, None], start)[:, 0]
    return tuple(state.chunk(2, -1)) if isinstance(output, tuple) else state


def _open_ours(
    name: str, part: RecurrentLayers, args: Any, output: Any, known: dict[str, Direction], runs: list[Run]
) -> Any:
    """One call of a stack of `unrolled.models`: its inputs or the gates that they made, (D, T, B, G·H), are given."""
    inputs, start, ragged, weights = args[0]
    gates = inputs.values if isinstance(inputs, Gates) else part.gates(inputs, ragged, weights)
    lengths = torch.full((gates.shape[2],), gates.shape[1]) if ragged is None else ragged.lengths
    x, lasts = gates, []
    for number, layer in enumerate(part):
        assert isinstance(layer, Layer)
        if number:
            gates = layer.gates(x, ragged, weights[number])
        outputs, finals, H = [], [], layer.settings.hidden_size
        for place, own in enumerate(gates):
            direction = known[_joined(name, f"{number}.{('fwd', 'bwd')[place]}")]
            starts = None if start is None else [s[:, place * H : (place + 1) * H] for s in start[number]]
            first = _start(starts, own[0], direction.weights)
            run = _continued(runs, direction, first, lengths)
            inputs = own.transpose(0, 1)  # (T, B, G·H), mirrored already -> (B, T, G·H)
            inputs = mirrored(inputs, lengths) if direction.is_backward else inputs
            outputs.append(run.over(inputs, first)[..., :H])
            finals.append(run.last().chunk(2 if direction.weights.is_lstm else 1, -1))
        x = torch.cat(outputs, -1)  # (B, T, D·H)
        lasts.append(type(output[1][number])(*(torch.cat(half, -1) for half in zip(*finals, strict=True))))
    return x, tuple(lasts)


def _given(args: Any) -> tuple[Any, Any]:
    """Input and start state of a call, by position or by name."""
    positional, named = args
    given = positional[0] if positional else named["input"]
    return given, positional[1] if len(positional) > 1 else named.get("hx")


def _as_list(hx: Any) -> list[Tensor]:
    return list(hx) if isinstance(hx, tuple | list) else [hx]


def _start(parts: list[Tensor] | None, x: Tensor, weights: Weights) -> Tensor:
    return x.new_zeros(len(x), weights.state_size) if parts is None else torch.cat(parts, -1)


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
    last = next((run for run in reversed(runs) if run.direction is direction), None)
    if last is not None and last.states and bool((lengths == 1).all()) and torch.equal(last.states[-1], start):
        last.lengths = last.lengths + 1
        return last
    runs.append(Run(direction, start, lengths))
    return runs[-1]
