"""Recurrent decoder: attention after the cell (Luong et al. 2015), or a fixed vector alone (Sutskever et al. 2014)."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from unrolled import config
from unrolled.models.attention import SCORES, masked_softmax
from unrolled.models.contract import DecoderOutput, Encoded, detached, folded, selected
from unrolled.models.dropout import dropout
from unrolled.models.recurrent import STATES, CellState, GRUState, LSTMState, Ragged, RecurrentLayers, Tokens
from unrolled.parameters import Sizes, starts_directly

__all__ = ["RecurrentDecoder", "RecurrentMemory", "RecurrentState"]


class RecurrentMemory(NamedTuple):
    """Encoder output (B, S, M), its mask (B, S), its keys (B, S, H) where there is attention, and the start states."""

    output: Tensor
    mask: Tensor
    keys: Tensor | None
    start: tuple[CellState, ...]

    def select(self, sources: Tensor) -> Self:
        """Memory of these sources alone."""
        return selected(self, sources)


class RecurrentState(NamedTuple):
    """One cell state a layer."""

    layers: tuple[CellState, ...]

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same values, cut from the graph."""
        return detached(self)

    def restarted(self, rows: Tensor, start: RecurrentState) -> RecurrentState:
        """State with these rows (B,) taken back to their start."""
        pairs = zip(self.layers, start.layers, strict=True)
        return RecurrentState(tuple(_chosen(rows.unsqueeze(1), begin, now) for now, begin in pairs))


def _chosen(rows: Tensor, yes: CellState, no: CellState) -> CellState:
    return type(no)(*(torch.where(rows, a, b) for a, b in zip(yes, no, strict=True)))


class Start(nn.Module):
    """Projection of an encoder's final state to one layer's start state: ``h = tanh(W h + b)``, ``c = W c + b``."""

    def __init__(self, cell: config.Cell, memory_size: int, hidden_size: int) -> None:
        super().__init__()
        self.h = nn.Linear(memory_size, hidden_size)
        if cell == "lstm":
            self.c = nn.Linear(memory_size, hidden_size)

    def forward(self, final: tuple[Tensor, ...]) -> CellState:
        """Start state (B, H); an LSTM after an encoder without cells starts both halves from its one vector."""
        h = torch.tanh(self.h(final[0]))
        if not hasattr(self, "c"):
            return GRUState(h)
        return LSTMState(h, self.c(final[-1]))


class RecurrentDecoder(nn.Module):
    """Recurrent layers over the target, attention to the source after them.

    Under teacher forcing every input is known in advance: one recurrence, then attention of all steps at once.
    ``s̃ = tanh(W_c [context; s])`` and ``logits = W_s s̃ + b`` (Luong et al. 2015, eq. 5 and 6).
    """

    def __init__(self, settings: config.RecurrentDecoder, encoder: config.Encoder, sizes: Sizes) -> None:
        super().__init__()
        H, M = settings.hidden_size, config.memory_size(encoder)
        self.cell = settings.cell
        self.dropout = settings.dropout
        self.embedding = nn.Embedding(sizes.target, settings.embedding_dim)
        self.layers = RecurrentLayers(
            settings.cell,
            settings.embedding_dim,
            hidden_size=H,
            num_layers=settings.num_layers,
            is_bidirectional=False,
            dropout=settings.dropout,
        )
        if not starts_directly(encoder, settings):
            self.start = nn.ModuleList(Start(settings.cell, M, H) for _ in range(settings.num_layers))
        if settings.attention != "none":
            self.attention = SCORES[settings.attention](M, H)
            self.combine = nn.Linear(M + H, H)
        self.output = nn.Linear(H, sizes.target)

    def prepare(self, encoded: Encoded) -> RecurrentMemory:
        """Compute once a source what every step needs."""
        keys = self.attention.keys(encoded.output) if hasattr(self, "attention") else None
        return RecurrentMemory(encoded.output, encoded.mask, keys, self._start(encoded))

    def _start(self, encoded: Encoded) -> tuple[CellState, ...]:
        if not hasattr(self, "start"):
            return tuple(STATES[self.cell](*final) for final in encoded.finals)
        finals = encoded.finals or ((_masked_mean(encoded.output, encoded.mask),),)
        lowest = len(finals) - len(self.start)  # the top layers of both stacks are aligned
        return tuple(start(finals[max(0, lowest + number)]) for number, start in enumerate(self.start))

    def initial_state(self, memory: RecurrentMemory, batch_size: int) -> RecurrentState:
        """Start of `batch_size` rows: as many a source as fit."""
        beams = batch_size // len(memory.mask)
        start = memory.start
        if beams > 1:
            start = selected(start, torch.arange(batch_size, device=memory.mask.device) // beams)
        return RecurrentState(start)

    def forward(
        self,
        tokens: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        *,
        mask: Tensor | None,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode ids (R, n); R is a multiple of the number of sources."""
        table = dropout(self.embedding.weight, self.dropout, self.training)
        ragged = None if mask is None else Ragged.from_mask(mask)
        hidden, layers = self.layers(Tokens(tokens, table), state.layers, ragged)
        attention = None
        if memory.keys is not None:
            hidden, attention = self._attend(hidden, memory)
        logits = self.output(dropout(hidden, self.dropout, self.training))
        return DecoderOutput(logits, RecurrentState(layers), attention if need_attention else None)

    def _attend(self, hidden: Tensor, memory: RecurrentMemory) -> tuple[Tensor, Tensor]:
        query = folded(hidden, len(memory.mask))  # (B, k·n, H)
        weights = masked_softmax(self.attention(query, memory.keys), memory.mask.unsqueeze(1))
        context = torch.bmm(weights, memory.output).view(*hidden.shape[:2], -1)  # (R, n, M)
        attended = torch.tanh(self.combine(torch.cat([context, hidden], dim=-1)))
        return attended, weights.view(*hidden.shape[:2], -1)


def _masked_mean(output: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real positions: (B, S, M) → (B, M); zero where there are none."""
    weights = mask.to(output.dtype).unsqueeze(1)
    total: Tensor = torch.bmm(weights, output).squeeze(1)
    return total / weights.sum(dim=2).clamp(min=1)
