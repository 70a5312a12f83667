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
from unrolled.models.recurrence import (
    gru_reset_before_scan,
    gru_scan,
    lstm_fused,
    lstm_scan,
    lstm_ungated_scan,
    rnn_scan,
)
from unrolled.models.reused import Reused
from unrolled.parameters import num_gates

__all__ = [
    "STATES",
    "CellState",
    "GRUState",
    "Gates",
    "LSTMState",
    "RNNState",
    "Ragged",
    "RecurrentLayers",
    "Tokens",
    "Weights",
]


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
_MIN_STEPS = 8  # of which a kernel that packs its weights first is faster than the loop
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


class Gates(NamedTuple):
    """Input of the first layer that has met its weights already: the input part of all gates, (D, T, B, G·H)."""

    values: Tensor


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


class Weights(NamedTuple):
    """The weights of one layer for one pass, over whose steps their gradients are gathered; D directions.

    `known` (D, G·H, E) meets the input that is known in advance, `fed` (D, G·H, X) what is fed beside it, if anything;
    `bias` (D, 1, G·H) is outside of the recurrence; `recurrent` (D, G·H, H) and `inner_bias` (D, G·H) are inside.
    """

    known: Reused
    fed: Reused | None
    bias: Tensor
    recurrent: Reused
    inner_bias: Tensor | None


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
        self.input_size, self.fed_size = input_size, fed_size
        self.has_inner_bias = settings.cell == "gru" and settings.reset == "after"
        self.fwd = Cell(settings, input_size + fed_size)
        self.directions = [self.fwd]
        if is_bidirectional:
            self.bwd = Cell(settings, input_size + fed_size)
            self.directions.append(self.bwd)

    def weights(self) -> Weights:
        """The weights for one pass."""
        weight = self._stacked("weight_ih")
        known, fed = weight.tensor_split([self.input_size], dim=2) if self.fed_size else (weight, None)
        return Weights(
            known=Reused(known),
            fed=None if fed is None else Reused(fed),
            bias=self._outer_bias().unsqueeze(1),
            recurrent=Reused(self._stacked("weight_hh")),
            inner_bias=self._stacked("bias_hh") if self.has_inner_bias else None,
        )

    def _stacked(self, name: str) -> Tensor:
        """One weight of all directions, (D, ...)."""
        if len(self.directions) == 1:
            weight: Tensor = getattr(self.fwd, name)
            return weight.unsqueeze(0)
        return torch.stack([getattr(direction, name) for direction in self.directions])

    def _outer_bias(self) -> Tensor:
        """Biases outside of the recurrence, (D, G·H).

        They are added before they are stacked: a sum of stacked views would hand both parameters one gradient in the
        same memory, and whatever changes it in place would do so twice.
        """
        if self.has_inner_bias:
            return self._stacked("bias_ih")
        return torch.stack([cell.bias_ih + cell.bias_hh for cell in self.directions])

    def read(
        self, inputs: Tensor | Tokens | Gates, start: CellState | None, ragged: Ragged | None, weights: Weights
    ) -> tuple[Tensor, CellState]:
        """Run the layer over inputs (B, T, E), or over the gates that they made; the rest as in `run`."""
        if isinstance(inputs, Gates):
            return self.run(inputs.values, start, ragged, weights)
        if ragged is None and self._has_kernel(inputs):
            return self._fused(inputs.embedded() if isinstance(inputs, Tokens) else inputs, start)
        return self.run(self.gates(inputs, ragged, weights), start, ragged, weights)

    def _has_kernel(self, inputs: Tensor | Tokens) -> bool:
        """Whether oneDNN has one for this cell and it pays: it packs the weights at each call."""
        if isinstance(inputs, Tokens):
            num_steps, sample = inputs.ids.shape[1], inputs.table
        else:
            num_steps, sample = inputs.shape[1], inputs
        is_plain = sample.device.type == "cpu" and sample.dtype == self.fwd.weight_hh.dtype == torch.float32
        return (
            self.settings.cell == "lstm"
            and self.settings.forget_gate
            and len(self.directions) == 1
            and not self.fed_size
            and num_steps >= _MIN_STEPS
            and is_plain
            and torch.backends.mkldnn.is_available()
            and not torch.is_autocast_enabled("cpu")
        )

    def _fused(self, x: Tensor, start: CellState | None) -> tuple[Tensor, LSTMState]:
        zero = x.new_zeros(len(x), self.settings.hidden_size)
        cell, (h, c) = self.fwd, cast("LSTMState", start or LSTMState(zero, zero))
        output, h, c = lstm_fused(x, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh, h, c)
        return output, LSTMState(h, c)

    def run(
        self, gates: Tensor, start: CellState | None, ragged: Ragged | None, weights: Weights
    ) -> tuple[Tensor, CellState]:
        """Run the recurrence.

        Parameters
        ----------
        gates : Tensor (D, T, B, G·H)
            From `gates`.
        start : CellState or None
            (B, D·H) each; zero if None.
        ragged : Ragged or None
            Needed for right-padded rows and for a backward direction.
        weights : Weights

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
        states = self._scan(gates, weights, *first)
        output = _in_order(states[0], None if D == 1 else ragged)
        return output, kind(*(_last(part, begin, ragged) for part, begin in zip(states, first, strict=True)))

    def _scan(self, gates: Tensor, weights: Weights, *start: Tensor) -> tuple[Tensor, ...]:
        """Step in the precision of the weights, also under autocast: errors of a recurrence add up."""
        precision = weights.recurrent.weight.dtype
        with torch.autocast(gates.device.type, enabled=False):
            return self._step_through(gates.to(precision), weights, *(part.to(precision) for part in start))

    def _step_through(self, gates: Tensor, weights: Weights, h: Tensor, *c: Tensor) -> tuple[Tensor, ...]:
        weight = weights.recurrent
        if self.settings.cell == "lstm":
            scan = lstm_scan if self.settings.forget_gate else lstm_ungated_scan
            return scan(gates, weight, h, *c)
        if self.settings.cell == "rnn":
            return (rnn_scan(gates, weight, h, is_relu=self.settings.nonlinearity == "relu"),)
        if weights.inner_bias is not None:
            return (gru_scan(gates, weight, weights.inner_bias, h),)
        return (gru_reset_before_scan(gates, weight, h),)

    def gates(self, inputs: Tensor | Tokens, ragged: Ragged | None, weights: Weights) -> Tensor:
        """Input part of all gates of all steps, (D, T, B, G·H): one product, or a gather from a table of products."""
        if isinstance(inputs, Tokens):
            if len(inputs.table) <= inputs.ids.numel():
                return _looked_up(inputs, ragged, weights)
            inputs = inputs.embedded()
        x = _by_direction(inputs, len(weights.bias), ragged)  # (D, T, B, E)
        return weights.known.product(x.flatten(1, 2), weights.bias).view(*x.shape[:3], -1)

    def fed(self, vectors: Tensor, weights: Weights) -> Tensor:
        """What vectors (B, X) that are fed beside the input add to the gates of a step, (D, 1, B, G·H)."""
        assert weights.fed is not None, "the layer was made for inputs that are known in advance"
        return weights.fed.product(vectors.expand(len(weights.bias), -1, -1)).unsqueeze(1)


def _looked_up(inputs: Tokens, ragged: Ragged | None, weights: Weights) -> Tensor:
    """Gates where there are fewer symbols than tokens: multiply the embedding table once, not every token."""
    D = len(weights.bias)
    V = len(inputs.table)
    ids = _by_direction(inputs.ids, D, ragged)  # (D, T, B)
    table = weights.known.product(inputs.table.expand(D, -1, -1), weights.bias).flatten(0, 1)
    gates = functional.embedding(ids + torch.arange(D, device=ids.device).view(D, 1, 1) * V, table)
    if inputs.offset is None:
        return gates
    return gates + weights.known.product(inputs.offset.expand(D, -1, -1)).unsqueeze(1)


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

    def weights(self) -> tuple[Weights, ...]:
        """Those of every layer for one pass."""
        return tuple(layer.weights() for layer in cast("Iterator[Layer]", iter(self)))

    def gates(self, inputs: Tensor | Tokens, ragged: Ragged | None, weights: tuple[Weights, ...]) -> Tensor:
        """Those of the lowest layer, which the inputs make; see `Layer.gates`."""
        return cast("Layer", self[0]).gates(inputs, ragged, weights[0])

    def fed(self, vectors: Tensor, weights: tuple[Weights, ...]) -> Tensor:
        """What vectors that are fed beside the inputs add to them; see `Layer.fed`."""
        return cast("Layer", self[0]).fed(vectors, weights[0])

    def forward(
        self,
        inputs: Tensor | Tokens | Gates,
        start: tuple[CellState, ...] | None,
        ragged: Ragged | None,
        weights: tuple[Weights, ...],
    ) -> tuple[Tensor, tuple[CellState, ...]]:
        """Run all layers; arguments and results as in `Layer`, states one a layer."""
        starts = start or (None,) * len(self)
        lowest, *above = cast("Iterator[Layer]", iter(self))
        output, state = lowest.read(inputs, starts[0], ragged, weights[0])
        last = [state]
        for layer, begin, own in zip(above, starts[1:], weights[1:], strict=True):
            output, state = layer.read(self.drop(output, self.dropout, self.training), begin, ragged, own)
            last.append(state)
        return output, tuple(last)
