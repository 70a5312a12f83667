"""Transformer encoder and decoder (Vaswani et al. 2017); norms first as in Xiong et al. 2020, or last as in 2017."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled import config
from unrolled.errors import ShapeError
from unrolled.models.attention import join_heads
from unrolled.models.cache import Cache, KeysValues
from unrolled.models.contract import DecoderOutput, Encoded, detached, real_lengths, selected
from unrolled.models.dropout import dropout
from unrolled.models.multihead import CrossAttention, LayeredMemory, SelfAttention
from unrolled.models.output import Output
from unrolled.models.positions import sinusoids, symbol_positions, turns
from unrolled.models.sight import Sight, sight
from unrolled.parameters import Sizes

__all__ = ["TransformerDecoder", "TransformerEncoder", "TransformerState"]


class FeedForward(nn.Module):
    """``W_2 f(W_1 x + b_1) + b_2``, f ReLU or GELU; `swiglu`: ``W_2 (silu(W_g x + b_g) ⊙ (W_1 x + b_1)) + b_2``."""

    def __init__(self, settings: config.Transformer) -> None:
        super().__init__()
        self.dropout = settings.dropout
        self.activation = settings.activation
        if settings.activation == "swiglu":
            self.gate = nn.Linear(settings.d_model, settings.d_ff)
        self.up = nn.Linear(settings.d_model, settings.d_ff)
        self.down = nn.Linear(settings.d_ff, settings.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        hidden: Tensor = self.up(x)
        if self.activation == "relu":
            hidden = functional.relu(hidden, inplace=not torch.is_grad_enabled())
        elif self.activation == "gelu":
            hidden = functional.gelu(hidden)
        else:
            hidden = functional.silu(self.gate(x)) * hidden
        y: Tensor = self.down(dropout(hidden, self.dropout, self.training))
        return y


class Block(nn.Module):
    """Residual sublayers with their norms before (``x + f(norm(x))``) or after (``norm(x + f(x))``)."""

    def __init__(self, settings: config.Transformer) -> None:
        super().__init__()
        self.is_pre = settings.norm == "pre"
        self.dropout = settings.dropout

    def inward(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What the sublayer reads."""
        y: Tensor = norm(x) if self.is_pre else x
        return y

    def outward(self, norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The stream x with the sublayer's y in it."""
        x = x + dropout(y, self.dropout, self.training)
        normed: Tensor = x if self.is_pre else norm(x)
        return normed


class Embedding(nn.Module):
    """What encoder and decoder share at their two ends: symbols with positions below, a last norm above."""

    def __init__(self, settings: config.Transformer, num_symbols: int) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Embedding(num_symbols, settings.d_model)
        if settings.positions == "learned":
            self.positions = nn.Embedding(settings.max_positions, settings.d_model)
        if settings.norm == "pre":
            self.norm = nn.LayerNorm(settings.d_model)

    def marks(self, positions: Tensor) -> Tensor | float:
        """What is added to the symbols at these positions: (..., D), or nothing with rotary positions.

        Raises
        ------
        ShapeError
            Where the table of learned positions ends.
        """
        if self.settings.positions == "rotary":
            return 0.0
        if self.settings.positions == "sinusoidal":
            return sinusoids(positions, self.settings.d_model).to(self.embedding.weight.dtype)
        last, limit = int(positions.max()), self.settings.max_positions
        if last >= limit:
            raise ShapeError(f"a sequence of {last + 1} symbols, but positions=learned end at {limit} (max_positions)")
        table: Tensor = self.positions(positions)
        return table

    def turns(self, positions: Tensor) -> Tensor | None:
        """How rotary positions (B, T) turn the queries and keys of every layer; None without them."""
        if self.settings.positions != "rotary":
            return None
        return turns(positions, self.settings.d_model // self.settings.num_heads, self.embedding.weight.dtype)

    def normed(self, x: Tensor) -> Tensor:
        """The stream at the top."""
        y: Tensor = self.norm(x) if self.settings.norm == "pre" else x
        return y


# --- encoder ---------------------------------------------------------------------------------------------------------


class EncoderLayer(Block):
    """Self-attention, then feed-forward."""

    def __init__(self, settings: config.TransformerEncoder) -> None:
        super().__init__(settings)
        D = settings.d_model
        self.norm1 = nn.LayerNorm(D)
        self.attention = SelfAttention(D, settings.num_heads)
        self.norm2 = nn.LayerNorm(D)
        self.ff = FeedForward(settings)

    def forward(self, x: Tensor, turn: Tensor | None, seen: Sight) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        query, keys, values = self.attention.project(self.inward(self.norm1, x), turn)
        context = join_heads(seen.attend(query, keys, values))
        x = self.outward(self.norm1, x, self.attention.out(context))
        return self.outward(self.norm2, x, self.ff(self.inward(self.norm2, x)))


class TransformerEncoder(Embedding):
    """Symbols with positions; features are tokens with a type embedding and no position."""

    def __init__(self, settings: config.TransformerEncoder, sizes: Sizes) -> None:
        super().__init__(settings, sizes.source)
        self.first_feature = sizes.source - sizes.features
        if sizes.features:
            self.feature_type = nn.Parameter(torch.empty(settings.d_model))
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.num_layers))

    def forward(self, source: Tensor, source_mask: Tensor) -> Encoded:
        """Encode ids (B, S)."""
        positions = symbol_positions(source, source_mask, self.first_feature)
        steps = torch.arange(source.shape[1], device=source.device)
        marks = self.marks(torch.minimum(steps, positions.max()))  # features and padding need no positions
        if hasattr(self, "feature_type"):
            symbol_marks = torch.as_tensor(marks, dtype=self.feature_type.dtype, device=source.device)
            marks = torch.where((source >= self.first_feature).unsqueeze(-1), self.feature_type, symbol_marks)
        x = dropout(self.embedding(source) + marks, self.settings.dropout, self.training)
        S, window = source.shape[1], self.settings.window
        seen = sight(S, S, source_mask, is_causal=False, window=window, device=source.device)
        turn = self.turns(positions)
        for layer in self.layers:
            x = layer(x, turn, seen)
        return Encoded(self.normed(x), source_mask, positions, ())


# --- decoder ---------------------------------------------------------------------------------------------------------


class TransformerState(NamedTuple):
    """The past of a Transformer decoder.

    `layers` hold P past positions; `valid` (B, P) tells which of them are real tokens of their row, None for all;
    `position` (B,) is each row's number of real tokens so far. With a window w, P is at most w − 1: the last real
    tokens of each row, at the end.
    """

    layers: tuple[Cache, ...]
    valid: Tensor | None
    position: Tensor

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same values, cut from the graph."""
        return detached(self)

    def restarted(self, rows: Tensor, start: TransformerState) -> TransformerState:
        """State with these rows (B,) taken back to their start: their past is hidden and they count from 0."""
        past = self.layers[0].keys.shape[2]
        valid = rows.new_ones(len(rows), past) if self.valid is None else self.valid
        return TransformerState(
            self.layers, valid & ~rows.unsqueeze(1), torch.where(rows, start.position, self.position)
        )

    def last(self, num_positions: int, lengths: Tensor | None, n: int) -> TransformerState:
        """State with no more than each row's last positions, where the last n hold its `lengths` (B,) real tokens."""
        past = self.layers[0].keys.shape[2]
        if lengths is None:
            valid = None if self.valid is None else self.valid[:, max(0, past - num_positions) :]
            return TransformerState(tuple(cache.last(num_positions) for cache in self.layers), valid, self.position)
        kept = min(num_positions, past)
        steps = lengths.unsqueeze(1) + torch.arange(past - n - kept, past - n, device=lengths.device)
        assert self.valid is not None
        inside = steps.clamp(min=0)
        return TransformerState(
            tuple(cache.at(inside) for cache in self.layers),
            self.valid.gather(1, inside) & (steps >= 0),
            self.position,
        )


class DecoderLayer(Block):
    """Self-attention over the past, attention to the memory if there is one, feed-forward."""

    def __init__(self, settings: config.TransformerDecoder, memory_size: int | None) -> None:
        super().__init__(settings)
        D = settings.d_model
        self.norm1 = nn.LayerNorm(D)
        self.attention = SelfAttention(D, settings.num_heads)
        if memory_size is not None:
            self.norm2 = nn.LayerNorm(D)
            self.cross = CrossAttention(D, memory_size, settings.num_heads)
        self.norm3 = nn.LayerNorm(D)
        self.ff = FeedForward(settings)

    def forward(
        self,
        x: Tensor,
        turn: Tensor | None,
        *,
        past: Cache,
        seen: Sight,
        memory: tuple[KeysValues, Tensor] | None,
        need_attention: bool,
    ) -> tuple[Tensor, Cache, Tensor | None]:
        """(R, n, D) → (R, n, D), with the past grown by n.

        `turn` is that of rotary positions; `memory` is this layer's keys and values of the source, and which of them
        are real.
        """
        query, keys, values = self.attention.project(self.inward(self.norm1, x), turn)
        cache = past.grown(keys, values)
        x = self.outward(self.norm1, x, self.attention.out(join_heads(seen.attend(query, *cache))))
        weights = None
        if memory is not None:
            attended, weights = self.cross(self.inward(self.norm2, x), *memory, turn, need_attention=need_attention)
            x = self.outward(self.norm2, x, attended)
        return self.outward(self.norm3, x, self.ff(self.inward(self.norm3, x))), cache, weights


class TransformerDecoder(Embedding):
    """Decoder layers over the target with a key-value cache; without an encoder a language model's."""

    def __init__(self, settings: config.TransformerDecoder, encoder: config.Encoder | None, sizes: Sizes) -> None:
        super().__init__(settings, sizes.target)
        D, M = settings.d_model, None if encoder is None else config.memory_size(encoder)
        self.head_shape = (settings.num_heads, D // settings.num_heads)
        self.layers = nn.ModuleList(DecoderLayer(settings, M) for _ in range(settings.num_layers))
        self.output = Output(D, sizes.target, is_tied=settings.tie_embeddings)

    def prepare(self, encoded: Encoded) -> LayeredMemory:
        """Compute once a source the keys and values of every layer."""
        return LayeredMemory.of_layers(self.layers, encoded, self.turns(encoded.positions))

    def initial_state(self, memory: LayeredMemory | None, batch_size: int) -> TransformerState:
        """Nothing seen yet."""
        del memory
        heads, head_dim = self.head_shape
        empty = self.output.bias.new_empty(batch_size, heads, 0, head_dim)
        position = torch.zeros(batch_size, dtype=torch.int64, device=empty.device)
        return TransformerState((Cache(empty, empty),) * len(self.layers), None, position)

    def forward(
        self,
        tokens: Tensor,
        memory: LayeredMemory | None,
        state: TransformerState,
        *,
        mask: Tensor | None,
        classes: Tensor | None,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode ids (R, n); R is a multiple of the number of sources."""
        n = tokens.shape[1]
        past = state.layers[0].keys.shape[2]
        positions = state.position.unsqueeze(1) + torch.arange(n, device=tokens.device)
        if mask is not None:
            positions = positions.masked_fill(~mask, 0)  # padding needs none
        valid = _valid(state.valid, mask, past, tokens)
        window = self.settings.window
        seen = sight(n, past + n, valid, is_causal=True, window=window, device=tokens.device)
        x = dropout(self.embedding(tokens) + self.marks(positions), self.settings.dropout, self.training)
        caches, weights, turn = [], None, self.turns(positions)
        for number, layer in enumerate(self.layers):
            x, cache, weights = layer(
                x,
                turn,
                past=state.layers[number],
                seen=seen,
                memory=None if memory is None else (memory.layers[number], memory.mask),
                need_attention=need_attention and number == len(self.layers) - 1,
            )
            caches.append(cache)
        lengths = None if mask is None else real_lengths(mask)
        reached = TransformerState(tuple(caches), valid, state.position + (n if lengths is None else lengths))
        if window is not None:
            reached = reached.last(window - 1, lengths, n)
        logits = self.output(self.normed(x), self.embedding.weight, classes)
        return DecoderOutput(logits, reached, None if weights is None else weights.mean(dim=1))


def _valid(valid: Tensor | None, mask: Tensor | None, past: int, tokens: Tensor) -> Tensor | None:
    """Which of the past and new positions are real, (B, P + n); None for all."""
    if valid is None and mask is None:
        return None
    B, n = tokens.shape
    before = torch.ones(B, past, dtype=torch.bool, device=tokens.device) if valid is None else valid
    new = torch.ones(B, n, dtype=torch.bool, device=tokens.device) if mask is None else mask
    return torch.cat([before, new], dim=1)
