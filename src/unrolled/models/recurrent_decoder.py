"""Recurrent decoder: its wirings of attention, and the fixed vector alone."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from unrolled import config
from unrolled.models.attention import SCORES, masked_softmax
from unrolled.models.contract import DecoderOutput, Encoded, detached, folded, selected
from unrolled.models.dropout import dropout
from unrolled.models.output import Output
from unrolled.models.recurrent import STATES, CellState, Gates, LSTMState, Ragged, RecurrentLayers, Tokens
from unrolled.models.reused import Reused, affine
from unrolled.parameters import Sizes, input_size, starts_directly

__all__ = ["RecurrentDecoder", "RecurrentMemory", "RecurrentState"]


class RecurrentMemory(NamedTuple):
    """A batch of sources as a recurrent decoder reads it.

    Encoder output (B, S, M), its mask (B, S), its keys (B, S, H) where there is attention, the fixed vector (B, M)
    where it is fed at every step, and the start states.
    """

    output: Tensor
    mask: Tensor
    keys: Tensor | None
    vector: Tensor | None
    start: tuple[CellState, ...]

    def select(self, sources: Tensor) -> Self:
        """Memory of these sources alone."""
        return selected(self, sources)


class RecurrentState(NamedTuple):
    """One cell state a layer, and with input feeding the attended vector s̃ of the step before, (B, H)."""

    layers: tuple[CellState, ...]
    attended: Tensor | None

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same values, cut from the graph."""
        return detached(self)

    @classmethod
    def zeros(
        cls, settings: config.RecurrentLanguageDecoder | config.FrameDecoder, batch_size: int, like: Tensor
    ) -> Self:
        """Start of a decoder without a source, on the device and in the type of a tensor."""
        kind, zero = STATES[settings.cell], like.new_zeros(batch_size, settings.hidden_size)
        return cls((kind(*[zero] * len(kind._fields)),) * settings.num_layers, None)

    def restarted(self, rows: Tensor, start: RecurrentState) -> RecurrentState:
        """State with these rows (B,) taken back to their start."""
        return _chosen(rows.unsqueeze(1), start, self)


def _chosen(rows: Tensor, yes: RecurrentState, no: RecurrentState) -> RecurrentState:
    """Row by row one state or the other; rows (B, 1)."""
    layers = tuple(
        type(b)(*(torch.where(rows, *parts) for parts in zip(a, b, strict=True)))
        for a, b in zip(yes.layers, no.layers, strict=True)
    )
    if yes.attended is None or no.attended is None:
        return RecurrentState(layers, None)
    return RecurrentState(layers, torch.where(rows, yes.attended, no.attended))


class ProjectedStart(nn.Module):
    """From an encoder's final state to one layer's start state: ``h = tanh(W h + b)``, ``c = W c + b``."""

    def __init__(self, settings: config.RecurrentDecoder, memory_size: int) -> None:
        super().__init__()
        self.kind = STATES[settings.cell]
        self.h = nn.Linear(memory_size, settings.hidden_size)
        if self.kind is LSTMState:
            self.c = nn.Linear(memory_size, settings.hidden_size)

    def forward(self, final: tuple[Tensor, ...]) -> CellState:
        """Start state (B, H); an LSTM after an encoder without cells starts both halves from its one vector."""
        parts = [torch.tanh(self.h(final[0]))]
        if self.kind is LSTMState:
            parts.append(self.c(final[-1]))
        return self.kind(*parts)


class LearnedStart(nn.Module):
    """One start state for every source."""

    def __init__(self, settings: config.RecurrentDecoder) -> None:
        super().__init__()
        self.kind = STATES[settings.cell]
        for part in self.kind._fields:
            self.register_parameter(part, nn.Parameter(torch.empty(settings.hidden_size)))

    def forward(self, batch_size: int) -> CellState:
        """Start state (B, H)."""
        return self.kind(*(getattr(self, part).expand(batch_size, -1) for part in self.kind._fields))


class RecurrentDecoder(nn.Module):
    """Recurrent layers over the target, with attention to the source.

    `luong`: ``s̃ = tanh(W_c [context; s])`` after the cell and ``logits = W_s s̃ + b`` (Luong et al. 2015, eq. 5 and 6).
    Under teacher forcing all inputs are known in advance: one recurrence, then attention of all steps at once.
    `luong_input_feeding`: s̃ of the step before is part of the cell's input (section 3.3 there).
    `bahdanau`: the state before the cell asks, the context is part of the cell's input, and the readout is
    ``tanh(W_c [s; context; embedding])`` (Bahdanau et al. 2014, appendix A.2, tanh in place of maxout).
    """

    def __init__(self, settings: config.RecurrentDecoder, encoder: config.Encoder, sizes: Sizes) -> None:
        super().__init__()
        E, H, M = settings.embedding_dim, settings.hidden_size, config.memory_size(encoder)
        self.settings = settings
        self.embedding = nn.Embedding(sizes.target, E)
        self.layers = RecurrentLayers(settings, E, fed_size=input_size(settings, M) - E)
        if settings.start == "learned":
            self.start = nn.ModuleList(LearnedStart(settings) for _ in range(settings.num_layers))
        elif not starts_directly(encoder, settings):
            self.start = nn.ModuleList(ProjectedStart(settings, M) for _ in range(settings.num_layers))
        if settings.attention != "none":
            self.attention = SCORES[settings.attention](M, H)
            self.combine = nn.Linear(M + H + (E if settings.wiring == "bahdanau" else 0), H)
        self.output = Output(H, sizes.target, is_tied=settings.tie_embeddings)

    # --- once a source -----------------------------------------------------------------------------------------------

    def prepare(self, encoded: Encoded) -> RecurrentMemory:
        """Compute once a source what every step needs."""
        keys = self.attention.keys(encoded.output) if hasattr(self, "attention") else None
        finals = encoded.finals or ((_masked_mean(encoded.output, encoded.mask),),)
        vector = finals[-1][0] if self.settings.vector_every_step else None
        return RecurrentMemory(encoded.output, encoded.mask, keys, vector, self._start(finals))

    def _start(self, finals: tuple[tuple[Tensor, ...], ...]) -> tuple[CellState, ...]:
        if not hasattr(self, "start"):
            return tuple(STATES[self.settings.cell](*final) for final in finals)
        if self.settings.start == "learned":
            return tuple(start(len(finals[0][0])) for start in self.start)
        lowest = len(finals) - len(self.start)  # the top layers of both stacks are aligned
        return tuple(start(finals[max(0, lowest + number)]) for number, start in enumerate(self.start))

    def initial_state(self, memory: RecurrentMemory, batch_size: int) -> RecurrentState:
        """Start of `batch_size` rows: as many a source as fit."""
        beams = batch_size // len(memory.mask)
        start = memory.start
        if beams > 1:
            start = selected(start, torch.arange(batch_size, device=memory.mask.device) // beams)
        is_fed = self.settings.wiring == "luong_input_feeding"
        return RecurrentState(start, torch.zeros_like(start[-1].h) if is_fed else None)

    # --- steps -------------------------------------------------------------------------------------------------------

    def forward(
        self,
        tokens: Tensor,
        memory: RecurrentMemory,
        state: RecurrentState,
        *,
        mask: Tensor | None,
        classes: Tensor | None,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode ids (R, n); R is a multiple of the number of sources."""
        inputs = Tokens(tokens, dropout(self.embedding.weight, self.settings.dropout, self.training))
        is_sequential = self.settings.wiring != "luong"
        run = self._step_by_step if is_sequential else self._all_at_once
        features, attention, state = run(inputs, _Pass(self, memory), state, mask)
        features = dropout(features, self.settings.dropout, self.training)
        logits = self.output(features, self.embedding.weight, classes)
        return DecoderOutput(logits, state, attention if need_attention else None)

    def _all_at_once(
        self, inputs: Tokens, one: _Pass, state: RecurrentState, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        read: Tokens | Gates = inputs
        if one.memory.vector is not None:
            beams = len(inputs.ids) // len(one.memory.mask)
            fed = self.layers.fed(one.memory.vector.repeat_interleave(beams, dim=0), one.weights)
            read = Gates(self.layers.gates(inputs, None, one.weights) + fed)
        ragged = None if mask is None else Ragged.from_mask(mask)
        hidden, layers = self.layers(read, state.layers, ragged, one.weights)
        if one.memory.keys is None:
            return hidden, None, RecurrentState(layers, None)
        context, weights = one.attend(hidden)
        return one.combined(context, hidden), weights, RecurrentState(layers, None)

    def _step_by_step(
        self, inputs: Tokens, one: _Pass, state: RecurrentState, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        step = self._bahdanau_step if self.settings.wiring == "bahdanau" else self._input_feeding_step
        all_gates = self.layers.gates(inputs, None, one.weights)
        features, attention = [], []
        for t, gates in enumerate(all_gates.split(1, dim=1)):
            feature, weights, after = step(gates, one, state)
            state = after if mask is None else _chosen(mask[:, t : t + 1], after, state)
            features.append(feature)
            attention.append(weights)
        joined = torch.cat(features, dim=1)
        if self.settings.wiring == "bahdanau":
            joined = one.combined(joined, inputs.embedded())
        return joined, torch.cat(attention, dim=1), state

    def _input_feeding_step(
        self, gates: Tensor, one: _Pass, state: RecurrentState
    ) -> tuple[Tensor, Tensor, RecurrentState]:
        """Cell of [embedding; s̃ before], attention, s̃ (R, 1, H)."""
        assert state.attended is not None
        gates = gates + self.layers.fed(state.attended, one.weights)
        hidden, layers = self.layers(Gates(gates), state.layers, None, one.weights)
        context, weights = one.attend(hidden)
        attended = one.combined(context, hidden)
        return attended, weights, RecurrentState(layers, attended.squeeze(1))

    def _bahdanau_step(self, gates: Tensor, one: _Pass, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """Attention of the state before, cell of [embedding; context], [s; context] (R, 1, H + M) for the readout."""
        context, weights = one.attend(state.layers[-1].h.unsqueeze(1))
        gates = gates + self.layers.fed(context.squeeze(1), one.weights)
        hidden, layers = self.layers(Gates(gates), state.layers, None, one.weights)
        return torch.cat([hidden, context], dim=-1), weights, RecurrentState(layers, None)


class _Pass:
    """What all steps of one call multiply by, so that its gradient is gathered over them."""

    def __init__(self, decoder: RecurrentDecoder, memory: RecurrentMemory) -> None:
        self.memory = memory
        self.weights = decoder.layers.weights()
        if memory.keys is not None:
            self._scores = decoder.attention.scores(memory.keys)
            self._values = Reused(memory.output.transpose(1, 2))
            self._combine = affine(decoder.combine)

    def attend(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Contexts (R, n, M) and weights (R, n, S) of queries (R, n, H)."""
        R, n = query.shape[:2]
        scores = self._scores(folded(query, len(self.memory.mask)))  # (B, k·n, S)
        weights = masked_softmax(scores, self.memory.mask.unsqueeze(1))
        return self._values.product(weights).view(R, n, -1), weights.view(R, n, -1)

    def combined(self, *parts: Tensor) -> Tensor:
        """``tanh(W_c [parts] + b)``, (R, n, H)."""
        return torch.tanh(self._combine(torch.cat(parts, dim=-1)))


def _masked_mean(output: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real positions: (B, S, M) → (B, M); zero where there are none."""
    weights = mask.to(output.dtype).unsqueeze(1)
    total: Tensor = torch.bmm(weights, output).squeeze(1)
    return total / weights.sum(dim=2).clamp(min=1)
