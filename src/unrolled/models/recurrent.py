"""Recurrent layers: cells in one or two directions over ragged rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unrolled import config
from unrolled.models.contract import detached, real_lengths, selected
from unrolled.models.dropout import Dropout, dropout
from unrolled.models.recurrence import gru_reset_before_scan, gru_scan, lstm_scan, lstm_ungated_scan, rnn_scan
from unrolled.parameters import num_gates

__all__ = ["STATES", "CellState", "GRUState", "LSTMState", "RNNState", "Ragged", "RecurrentLayers", "Tokens"]


class LSTMState(NamedTuple):
    """State of one LSTM layer, (B, H) each."""

    h: Tensor
    c: Tensor

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same values, cut from the graph."""
        return detached(self)


class GRUState(NamedTuple):
    """State of one GRU layer, (B, H)."""

    h: Tensor

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same values, cut from the graph."""
        return detached(self)


class RNNState(NamedTuple):
    """State of one simple recurrent layer, (B, H)."""

    h: Tensor

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same values, cut from the graph."""
        return detached(self)


CellState = LSTMState | GRUState | RNNState
STATES: dict[str, type[CellState]] = {"lstm": LSTMState, "gru": GRUState, "rnn": RNNState}


class Tokens(NamedTuple):
    """Input of the first layer: ids (B, T) into an embedding table (V, E), plus a vector (B, E) added at every step."""

    ids: Tensor
    table: Tensor
    offset: Tensor | None = None

    def embedded(self) -> Tensor:
        """The vectors themselves, (B, T, E)."""
        vectors = functional.embedding(self.ids, self.table)
        return vectors if self.offset is None else vectors + self.offset.unsqueeze(1)


class Ragged(NamedTuple):
    """Where the real tokens of right-padded rows are, worked out once a batch for all layers.

    `lengths` (B,); `mirror` (B, T) gives for each step the step that a backward direction reads there: the row reversed
    within its length, padding left in place. Mirroring twice is doing nothing.
    """

    lengths: Tensor
    mirror: Tensor

    @classmethod
    def from_mask(cls, mask: Tensor) -> Ragged:
        """Read lengths from a right-padded mask (B, T)."""
        lengths = real_lengths(mask)
        steps = torch.arange(mask.shape[1], device=mask.device)
        last = lengths.unsqueeze(1) - 1
        return cls(lengths, torch.where(steps <= last, last - steps, steps))


class Cell(nn.Module):
    """Weights of one direction of one layer."""

    def __init__(self, settings: config.Cells, input_size: int) -> None:
        super().__init__()
        gates = num_gates(settings) * settings.hidden_size
        self.weight_ih = nn.Parameter(torch.empty(gates, input_size))
        self.weight_hh = nn.Parameter(torch.empty(gates, settings.hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates))


class Layer(nn.Module):
    """One layer: all its directions run side by side in one recurrence.

    Parameters
    ----------
    settings : config.Cells
    input_size : int
        Width of the input that is known in advance.
    fed_size : int
        Width of what is fed beside it, step by step or the same at every step; the last columns of `weight_ih`.
    """

    def __init__(
        self, settings: config.Cells, input_size: int, *, fed_size: int = 0, is_bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.settings = settings
        self.input_size = input_size
        self.has_inner_bias = settings.cell == "gru" and settings.reset == "after"
        self.fwd = Cell(settings, input_size + fed_size)
        self.directions = [self.fwd]
        if is_bidirectional:
            self.bwd = Cell(settings, input_size + fed_size)
            self.directions.append(self.bwd)

    def stacked(self, name: str) -> Tensor:
        """One weight of all directions, (D, ...)."""
        if len(self.directions) == 1:
            weight: Tensor = getattr(self.fwd, name)
            return weight.unsqueeze(0)
        return torch.stack([getattr(direction, name) for direction in self.directions])

    def run(self, gates: Tensor, start: CellState | None, ragged: Ragged | None) -> tuple[Tensor, CellState]:
        """Run the recurrence.

        Parameters
        ----------
        gates : Tensor (D, T, B, G·H)
            From `gates`.
        start : CellState or None
            (B, D·H) each; zero if None.
        ragged : Ragged or None
            Needed for right-padded rows and for a backward direction.

        Returns
        -------
        output : Tensor (B, T, D·H)
            Both directions side by side, in the order of the input.
        last : CellState
            State after each row's last real step, (B, D·H) each.
        """
        D, _, B = gates.shape[:3]
        H = self.settings.hidden_size
        kind = STATES[self.settings.cell]
        first = (
            [gates.new_zeros(D, B, H)] * len(kind._fields)
            if start is None
            else [part.view(B, D, H).transpose(0, 1) for part in start]
        )
        states = self._scan(gates, *first)
        output = _in_order(states[0], None if D == 1 else ragged)
        return output, kind(*(_last(part, begin, ragged) for part, begin in zip(states, first, strict=True)))

    def _scan(self, gates: Tensor, *start: Tensor) -> tuple[Tensor, ...]:
        """Step in the precision of the weights, also under autocast: errors of a recurrence add up."""
        weight = self.stacked("weight_hh")
        with torch.autocast(gates.device.type, enabled=False):
            return self._step_through(gates.to(weight.dtype), weight, *(part.to(weight.dtype) for part in start))

    def _step_through(self, gates: Tensor, weight: Tensor, h: Tensor, *c: Tensor) -> tuple[Tensor, ...]:
        if self.settings.cell == "lstm":
            scan = lstm_scan if self.settings.forget_gate else lstm_ungated_scan
            return scan(gates, weight, h, *c)
        if self.settings.cell == "rnn":
            return (rnn_scan(gates, weight, h, is_relu=self.settings.nonlinearity == "relu"),)
        if self.has_inner_bias:
            return (gru_scan(gates, weight, self.stacked("bias_hh"), h),)
        return (gru_reset_before_scan(gates, weight, h),)

    def gates(self, inputs: Tensor | Tokens, ragged: Ragged | None) -> Tensor:
        """Input part of all gates of all steps, (D, T, B, G·H): one product, or a gather from a table of products."""
        weight = self.stacked("weight_ih")[..., : self.input_size].transpose(1, 2)  # (D, E, G·H)
        bias = self._outer_bias().unsqueeze(1)
        if isinstance(inputs, Tokens):
            if len(inputs.table) <= inputs.ids.numel():
                return _looked_up(inputs, weight, bias, ragged)
            inputs = inputs.embedded()
        x = _by_direction(inputs, len(bias), ragged)  # (D, T, B, E)
        return torch.baddbmm(bias, x.flatten(1, 2), weight).view(*x.shape[:3], -1)

    def _outer_bias(self) -> Tensor:
        """Biases outside of the recurrence, (D, G·H).

        They are added before they are stacked: a sum of stacked views would hand both parameters one gradient in the
        same memory, and whatever changes it in place would do so twice.
        """
        if self.has_inner_bias:
            return self.stacked("bias_ih")
        return torch.stack([cell.bias_ih + cell.bias_hh for cell in self.directions])

    def fed(self, vectors: Tensor) -> Tensor:
        """What vectors (B, X) that are fed beside the input add to the gates of a step, (D, 1, B, G·H)."""
        weight = self.stacked("weight_ih")[..., self.input_size :].transpose(1, 2)
        return (vectors @ weight).unsqueeze(1)


def _looked_up(inputs: Tokens, weight: Tensor, bias: Tensor, ragged: Ragged | None) -> Tensor:
    """Gates where there are fewer symbols than tokens: multiply the embedding table once, not every token."""
    D = len(bias)
    V, E = inputs.table.shape
    ids = _by_direction(inputs.ids, D, ragged)  # (D, T, B)
    table = torch.baddbmm(bias, inputs.table.expand(D, V, E), weight).flatten(0, 1)
    gates = functional.embedding(ids + torch.arange(D, device=ids.device).view(D, 1, 1) * V, table)
    return gates if inputs.offset is None else gates + (inputs.offset @ weight).unsqueeze(1)


class _Permuted(torch.autograd.Function):
    """Rows in another order; the gradient goes back by the inverse order instead of a scattered sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None, None]:
        return d_x.index_select(0, *ctx.saved_tensors), None, None


def _by_direction(x: Tensor, directions: int, ragged: Ragged | None) -> Tensor:
    """Time first, a copy a direction, the second one mirrored: (B, T, ...) → (D, T, B, ...)."""
    if directions == 1:
        return x.transpose(0, 1).contiguous().unsqueeze(0)
    assert ragged is not None
    B, T = ragged.mirror.shape
    order = (ragged.mirror + torch.arange(B, device=x.device).unsqueeze(1) * T).flatten()
    rows = x.flatten(0, 1)
    mirrored = _Permuted.apply(rows, order, order) if x.is_floating_point() else rows[order]  # type: ignore[no-untyped-call]
    return torch.stack([x.transpose(0, 1), mirrored.view_as(x).transpose(0, 1)])


def _in_order(h: Tensor, ragged: Ragged | None) -> Tensor:
    """Undo `_by_direction` and put the directions side by side: (D, T, B, H) → (B, T, D·H)."""
    D, T, B, H = h.shape
    if D == 1:
        return h[0].transpose(0, 1)
    assert ragged is not None
    rows, steps = torch.arange(B, device=h.device).unsqueeze(1), torch.arange(T, device=h.device)
    forward, mirror = steps.expand(B, T), ragged.mirror
    order = torch.stack([forward * B + rows, (T + mirror) * B + rows], dim=-1)  # (B, T, D) → rows of h
    inverse = torch.stack([(rows * T + forward) * 2, (rows * T + mirror) * 2 + 1]).transpose(1, 2)  # (D, T, B)
    permuted: Tensor = _Permuted.apply(h.flatten(0, 2), order.flatten(), inverse.flatten())  # type: ignore[no-untyped-call]
    return permuted.view(B, T, D * H)


def _last(states: Tensor, start: Tensor, ragged: Ragged | None) -> Tensor:
    """State after each row's last real step, its start where it has none: (D, T, B, H) → (B, D·H)."""
    if ragged is None:
        last = states[:, -1]
    else:
        steps = (ragged.lengths - 1).clamp(min=0)
        last = states[:, steps, torch.arange(len(steps), device=steps.device)]
        last = torch.where((ragged.lengths > 0).view(1, -1, 1), last, start)
    return last.transpose(0, 1).flatten(1)


class RecurrentLayers(nn.ModuleList):
    """A stack of layers with dropout between them."""

    def __init__(
        self,
        settings: config.Cells,
        input_size: int,
        *,
        fed_size: int = 0,
        is_bidirectional: bool = False,
        drop: Dropout = dropout,
    ) -> None:
        width = settings.hidden_size * (2 if is_bidirectional else 1)
        above = [Layer(settings, width, is_bidirectional=is_bidirectional) for _ in range(settings.num_layers - 1)]
        super().__init__([Layer(settings, input_size, fed_size=fed_size, is_bidirectional=is_bidirectional), *above])
        self.dropout = settings.dropout
        self.drop = drop

    @property
    def first(self) -> Layer:
        """The lowest layer, whose gates the inputs make."""
        return cast("Layer", self[0])

    def forward(
        self, gates: Tensor, start: tuple[CellState, ...] | None, ragged: Ragged | None
    ) -> tuple[Tensor, tuple[CellState, ...]]:
        """Run all layers from the gates of the first; arguments and results as in `Layer`, states one a layer."""
        last = []
        x = gates
        for number, layer in enumerate(cast("Iterator[Layer]", iter(self))):
            if number:
                x = layer.gates(self.drop(x, self.dropout, self.training), ragged)
            x, state = layer.run(x, None if start is None else start[number], ragged)
            last.append(state)
        return x, tuple(last)
