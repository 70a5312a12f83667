"""Recurrent layers: cells in one or two directions, ragged rows, and the encoder made of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from unrolled import config
from unrolled.models.contract import Encoded, detached, real_lengths, selected
from unrolled.models.dropout import dropout
from unrolled.models.recurrence import gru_scan, lstm_scan
from unrolled.parameters import NUM_GATES, Sizes

__all__ = ["CellState", "GRUState", "LSTMState", "RecurrentEncoder", "RecurrentLayers", "Tokens"]


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


CellState = LSTMState | GRUState
STATES: dict[str, type[CellState]] = {"lstm": LSTMState, "gru": GRUState}


class Tokens(NamedTuple):
    """Input of the first layer: ids (B, T) into an embedding table (V, E), plus a vector (B, E) added at every step."""

    ids: Tensor
    table: Tensor
    offset: Tensor | None = None


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

    def __init__(self, cell: config.Cell, input_size: int, hidden_size: int) -> None:
        super().__init__()
        gates = NUM_GATES[cell] * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(gates, input_size))
        self.weight_hh = nn.Parameter(torch.empty(gates, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates))


class Layer(nn.Module):
    """One layer: all its directions run side by side in one recurrence."""

    def __init__(self, cell: config.Cell, input_size: int, hidden_size: int, *, is_bidirectional: bool) -> None:
        super().__init__()
        self.cell = cell
        self.fwd = Cell(cell, input_size, hidden_size)
        self.directions = [self.fwd]
        if is_bidirectional:
            self.bwd = Cell(cell, input_size, hidden_size)
            self.directions.append(self.bwd)

    def stacked(self, name: str) -> Tensor:
        """One weight of all directions, (D, ...)."""
        return torch.stack([getattr(direction, name) for direction in self.directions])

    def forward(
        self, inputs: Tensor | Tokens, start: CellState | None, ragged: Ragged | None
    ) -> tuple[Tensor, CellState]:
        """Run over a batch.

        Parameters
        ----------
        inputs : Tensor (B, T, E) or Tokens
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
        gates = self._gates(inputs, ragged)  # (D, T, B, G·H)
        weight_hh = self.stacked("weight_hh")
        D, B = gates.shape[0], gates.shape[2]
        H = weight_hh.shape[-1]
        h, *c = (
            [gates.new_zeros(D, B, H)] * len(STATES[self.cell]._fields)
            if start is None
            else [part.view(B, D, H).transpose(0, 1) for part in start]
        )
        states: tuple[Tensor, ...]
        if self.cell == "lstm":
            states = lstm_scan(gates, weight_hh, h, c[0])
        else:
            states = (gru_scan(gates, weight_hh, self.stacked("bias_hh"), h),)
        output = _in_order(states[0], None if D == 1 else ragged)
        last = [_last(part, first, ragged) for part, first in zip(states, (h, *c), strict=True)]
        return output, STATES[self.cell](*last)

    def _gates(self, inputs: Tensor | Tokens, ragged: Ragged | None) -> Tensor:
        """Input part of all gates of all steps, (D, T, B, G·H): one product, or a gather from a table of products."""
        weight_ih = self.stacked("weight_ih").transpose(1, 2)  # (D, E, G·H)
        bias = self.stacked("bias_ih")
        if self.cell == "lstm":
            bias = bias + self.stacked("bias_hh")
        bias = bias.unsqueeze(1)
        D = len(bias)
        if isinstance(inputs, Tokens) and len(inputs.table) <= inputs.ids.numel():
            # Fewer symbols than tokens: multiply the embedding table once instead of every token.
            ids = _by_direction(inputs.ids, D, ragged)  # (D, T, B)
            V, E = inputs.table.shape
            table = torch.baddbmm(bias, inputs.table.expand(D, V, E), weight_ih).flatten(0, 1)
            shift = torch.arange(D, device=ids.device).view(D, 1, 1) * V
            gates = functional.embedding(ids + shift, table)
            if inputs.offset is not None:
                gates = gates + (inputs.offset @ weight_ih).unsqueeze(1)
            return gates
        x = inputs
        if isinstance(x, Tokens):
            embedded = functional.embedding(x.ids, x.table)
            x = embedded if x.offset is None else embedded + x.offset.unsqueeze(1)
        x = _by_direction(x, D, ragged)  # (D, T, B, E)
        return torch.baddbmm(bias, x.flatten(1, 2), weight_ih).view(*x.shape[:3], -1)


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
        cell: config.Cell,
        input_size: int,
        *,
        hidden_size: int,
        num_layers: int,
        is_bidirectional: bool,
        dropout: float,
    ) -> None:
        width = hidden_size * (2 if is_bidirectional else 1)
        super().__init__(
            Layer(cell, width if above else input_size, hidden_size, is_bidirectional=is_bidirectional)
            for above in range(num_layers)
        )
        self.dropout = dropout

    def forward(
        self, inputs: Tensor | Tokens, start: tuple[CellState, ...] | None, ragged: Ragged | None
    ) -> tuple[Tensor, tuple[CellState, ...]]:
        """Run all layers; arguments and results as in `Layer`, states one a layer."""
        last = []
        x: Tensor | Tokens = inputs
        for number, layer in enumerate(self):
            if number:
                assert isinstance(x, Tensor)
                x = dropout(x, self.dropout, self.training)
            x, state = layer(x, None if start is None else start[number], ragged)
            last.append(state)
        assert isinstance(x, Tensor)
        return x, tuple(last)


class RecurrentEncoder(nn.Module):
    """Embedding and recurrent layers over the symbols; features are memory entries of their own.

    Every symbol's input carries the mean of the row's feature embeddings, and each feature stands in the memory after a
    projection, so that attention can look at it. The order of features does not matter.
    """

    def __init__(self, settings: config.RecurrentEncoder, sizes: Sizes) -> None:
        super().__init__()
        E = settings.embedding_dim
        self.dropout = settings.dropout
        self.first_feature = sizes.source - sizes.features
        self.embedding = nn.Embedding(sizes.source, E)
        self.layers = RecurrentLayers(
            settings.cell,
            E,
            hidden_size=settings.hidden_size,
            num_layers=settings.num_layers,
            is_bidirectional=settings.is_bidirectional,
            dropout=settings.dropout,
        )
        if sizes.features:
            self.feature_type = nn.Parameter(torch.empty(E))
            self.features = nn.Linear(E, config.memory_size(settings))

    def forward(self, source: Tensor, source_mask: Tensor) -> Encoded:
        """Encode ids (B, S)."""
        table = dropout(self.embedding.weight, self.dropout, self.training)
        if not hasattr(self, "features"):
            output, last = self.layers(Tokens(source, table), None, Ragged.from_mask(source_mask))
        else:
            is_feature = source >= self.first_feature
            features = functional.embedding(source, table) + self.feature_type  # used at features only
            weights = (is_feature & source_mask).to(features.dtype)
            mean = weights.unsqueeze(1).bmm(features).squeeze(1) / weights.sum(1, keepdim=True).clamp(min=1)
            ragged = Ragged.from_mask(source_mask & ~is_feature)
            output, last = self.layers(Tokens(source, table, mean), None, ragged)
            output = torch.where(is_feature.unsqueeze(-1), self.features(features), output)
        return Encoded(dropout(output, self.dropout, self.training), source_mask, tuple(tuple(state) for state in last))
