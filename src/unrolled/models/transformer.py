"""Transformer encoder and decoder, pre-norm (Vaswani et al. 2017; norms first as in Xiong et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled import config
from unrolled.models.attention import dot_product_attention, dot_product_weights, join_heads, split_heads
from unrolled.models.contract import DecoderOutput, Encoded, detached, folded, real_lengths, selected
from unrolled.models.dropout import dropout
from unrolled.models.positions import rotated, sinusoids
from unrolled.parameters import Sizes

__all__ = ["Cache", "TransformerDecoder", "TransformerEncoder", "TransformerMemory", "TransformerState"]


class FeedForward(nn.Module):
    """``W_2 relu(W_1 x + b_1) + b_2``."""

    def __init__(self, d_model: int, d_ff: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        y: Tensor = self.down(dropout(functional.relu(self.up(x)), self.dropout, self.training))
        return y


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, queries, keys and values in one product."""

    def __init__(self, d_model: int, num_heads: int, *, is_rotary: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.is_rotary = is_rotary
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head, (B, N, T, K) each."""
        query, keys, values = (split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, dim=-1))
        if self.is_rotary:
            query, keys = rotated(query, positions), rotated(keys, positions)
        return query, keys, values


# --- encoder ---------------------------------------------------------------------------------------------------------


class EncoderLayer(nn.Module):
    """``x += attention(norm(x))``, ``x += feed_forward(norm(x))``."""

    def __init__(self, settings: config.TransformerEncoder) -> None:
        super().__init__()
        D = settings.d_model
        self.dropout = settings.dropout
        self.norm1 = nn.LayerNorm(D)
        self.attention = SelfAttention(D, settings.num_heads, is_rotary=settings.positions == "rotary")
        self.norm2 = nn.LayerNorm(D)
        self.ff = FeedForward(D, settings.d_ff, dropout=settings.dropout)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D); `mask` (B, 1, 1, S)."""
        query, keys, values = self.attention.project(self.norm1(x), positions)
        attended = self.attention.out(join_heads(dot_product_attention(query, keys, values, mask)))
        x = x + dropout(attended, self.dropout, self.training)
        return x + dropout(self.ff(self.norm2(x)), self.dropout, self.training)


class TransformerEncoder(nn.Module):
    """Symbols with positions; features are tokens with a type embedding and no position."""

    def __init__(self, settings: config.TransformerEncoder, sizes: Sizes) -> None:
        super().__init__()
        self.dropout = settings.dropout
        self.is_sinusoidal = settings.positions == "sinusoidal"
        self.first_feature = sizes.source - sizes.features
        self.embedding = nn.Embedding(sizes.source, settings.d_model)
        if sizes.features:
            self.feature_type = nn.Parameter(torch.empty(settings.d_model))
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.num_layers))
        self.norm = nn.LayerNorm(settings.d_model)

    def forward(self, source: Tensor, source_mask: Tensor) -> Encoded:
        """Encode ids (B, S)."""
        positions = torch.arange(source.shape[1], device=source.device).expand_as(source)
        x = self.embedding(source)
        if hasattr(self, "feature_type"):
            is_feature = source >= self.first_feature
            positions = positions.masked_fill(is_feature, 0)
            marks = is_feature.unsqueeze(-1) * self.feature_type
            x = x + (
                torch.where(is_feature.unsqueeze(-1), marks, self._marks(positions, x)) if self.is_sinusoidal else marks
            )
        elif self.is_sinusoidal:
            x = x + self._marks(positions[:1], x)
        x = dropout(x, self.dropout, self.training)
        allowed = source_mask[:, None, None, :]
        for layer in self.layers:
            x = layer(x, positions, allowed)
        return Encoded(self.norm(x), source_mask, ())

    @staticmethod
    def _marks(positions: Tensor, x: Tensor) -> Tensor:
        return sinusoids(positions, x.shape[-1]).to(x.dtype)


# --- decoder ---------------------------------------------------------------------------------------------------------


class Cache(NamedTuple):
    """Keys and values of one layer's past, (B, N, P, K) each."""

    keys: Tensor
    values: Tensor

    def grown(self, keys: Tensor, values: Tensor) -> Cache:
        """The past with n more positions; this one stays as it is."""
        if self.keys.shape[2] == 0:
            return Cache(keys, values)
        return Cache(torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2))


class TransformerState(NamedTuple):
    """The past of a Transformer decoder.

    `layers` hold P past positions; `valid` (B, P) tells which of them are real tokens of their row, None for all;
    `position` (B,) is each row's number of real tokens so far.
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


class TransformerMemory(NamedTuple):
    """The encoder's mask (B, S) and each layer's keys and values of it, (B, N, S, K)."""

    mask: Tensor
    layers: tuple[Cache, ...]

    def select(self, sources: Tensor) -> Self:
        """Memory of these sources alone."""
        return selected(self, sources)


class CrossAttention(nn.Module):
    """Multi-head attention from the decoder to the memory."""

    def __init__(self, d_model: int, memory_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(memory_size, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def prepare(self, output: Tensor) -> Cache:
        """Keys and values of every head, once a source."""
        keys, values = (split_heads(part, self.num_heads) for part in self.kv(output).chunk(2, dim=-1))
        return Cache(keys, values)

    def forward(self, x: Tensor, memory: Cache, mask: Tensor, *, need_attention: bool) -> tuple[Tensor, Tensor | None]:
        """Attend from x (R, n, D); rows of a source are folded into its query axis. Weights are (R, N, n, S)."""
        sources = len(mask)
        query = split_heads(self.query(folded(x, sources)), self.num_heads)  # (B, N, k·n, K)
        allowed = mask[:, None, None, :]
        context = join_heads(dot_product_attention(query, memory.keys, memory.values, allowed))
        attended: Tensor = self.out(context.reshape(*x.shape[:2], -1))
        if not need_attention:
            return attended, None
        weights = dot_product_weights(query, memory.keys, allowed).transpose(1, 2)  # (B, k·n, N, S)
        return attended, weights.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Self-attention over the past, attention to the memory, feed-forward; each after a norm and added to x."""

    def __init__(self, settings: config.TransformerDecoder, memory_size: int) -> None:
        super().__init__()
        D = settings.d_model
        self.dropout = settings.dropout
        self.norm1 = nn.LayerNorm(D)
        self.attention = SelfAttention(D, settings.num_heads, is_rotary=settings.positions == "rotary")
        self.norm2 = nn.LayerNorm(D)
        self.cross = CrossAttention(D, memory_size, settings.num_heads)
        self.norm3 = nn.LayerNorm(D)
        self.ff = FeedForward(D, settings.d_ff, dropout=settings.dropout)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        past: Cache,
        allowed: Tensor | None,
        memory: Cache,
        memory_mask: Tensor,
        need_attention: bool,
    ) -> tuple[Tensor, Cache, Tensor | None]:
        """(R, n, D) → (R, n, D), with the past grown by n; `allowed` None means causal without a past."""
        query, keys, values = self.attention.project(self.norm1(x), positions)
        cache = past.grown(keys, values)
        context = dot_product_attention(query, *cache, allowed, causal=allowed is None and query.shape[2] > 1)
        x = x + dropout(self.attention.out(join_heads(context)), self.dropout, self.training)
        attended, weights = self.cross(self.norm2(x), memory, memory_mask, need_attention=need_attention)
        x = x + dropout(attended, self.dropout, self.training)
        return x + dropout(self.ff(self.norm3(x)), self.dropout, self.training), cache, weights


class TransformerDecoder(nn.Module):
    """Decoder layers over the target with a key-value cache."""

    def __init__(self, settings: config.TransformerDecoder, encoder: config.Encoder, sizes: Sizes) -> None:
        super().__init__()
        D = settings.d_model
        self.head_shape = (settings.num_heads, D // settings.num_heads)
        self.dropout = settings.dropout
        self.is_sinusoidal = settings.positions == "sinusoidal"
        self.embedding = nn.Embedding(sizes.target, D)
        self.layers = nn.ModuleList(
            DecoderLayer(settings, config.memory_size(encoder)) for _ in range(settings.num_layers)
        )
        self.norm = nn.LayerNorm(D)
        self.output = nn.Linear(D, sizes.target)

    def prepare(self, encoded: Encoded) -> TransformerMemory:
        """Compute once a source the keys and values of every layer."""
        return TransformerMemory(
            encoded.mask, tuple(layer.cross.prepare(encoded.output) for layer in self._decoder_layers())
        )

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        return cast("Iterator[DecoderLayer]", iter(self.layers))

    def initial_state(self, memory: TransformerMemory, batch_size: int) -> TransformerState:
        """Nothing seen yet."""
        heads, head_dim = self.head_shape
        empty = memory.layers[0].keys.new_empty(batch_size, heads, 0, head_dim)
        position = torch.zeros(batch_size, dtype=torch.int64, device=memory.mask.device)
        return TransformerState((Cache(empty, empty),) * len(self.layers), None, position)

    def forward(
        self,
        tokens: Tensor,
        memory: TransformerMemory,
        state: TransformerState,
        *,
        mask: Tensor | None,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode ids (R, n); R is a multiple of the number of sources."""
        n = tokens.shape[1]
        past = state.layers[0].keys.shape[2]
        positions = state.position.unsqueeze(1) + torch.arange(n, device=tokens.device)
        valid = _valid(state.valid, mask, past, tokens)
        allowed = _allowed(valid, past, n, tokens.device)
        x = self.embedding(tokens)
        if self.is_sinusoidal:
            x = x + sinusoids(positions, x.shape[-1]).to(x.dtype)
        x = dropout(x, self.dropout, self.training)
        caches, weights = [], None
        for number, layer in enumerate(self.layers):
            x, cache, weights = layer(
                x,
                positions,
                past=state.layers[number],
                allowed=allowed,
                memory=memory.layers[number],
                memory_mask=memory.mask,
                need_attention=need_attention and number == len(self.layers) - 1,
            )
            caches.append(cache)
        advanced = state.position + (n if mask is None else real_lengths(mask))
        logits = self.output(self.norm(x))
        attention = None if weights is None else weights.mean(dim=1)
        return DecoderOutput(logits, TransformerState(tuple(caches), valid, advanced), attention)


def _valid(valid: Tensor | None, mask: Tensor | None, past: int, tokens: Tensor) -> Tensor | None:
    """Which of the past and new positions are real, (B, P + n); None for all."""
    if valid is None and mask is None:
        return None
    B, n = tokens.shape
    before = torch.ones(B, past, dtype=torch.bool, device=tokens.device) if valid is None else valid
    new = torch.ones(B, n, dtype=torch.bool, device=tokens.device) if mask is None else mask
    return torch.cat([before, new], dim=1)


def _allowed(valid: Tensor | None, past: int, n: int, device: torch.device) -> Tensor | None:
    """Keys that each new query may see: query i of n sees keys ≤ P + i (bottom right) that are real, and itself.

    None stands for plain causality, which needs no mask: without a past (padding on the right is never seen by a real
    token), or for one new token that sees everything.
    """
    if past == 0 or (valid is None and n == 1):
        return None
    causal = torch.ones(n, past + n, dtype=torch.bool, device=device).tril(past)
    if valid is None:
        return causal
    own = torch.eye(n, dtype=torch.bool, device=device)
    own = functional.pad(own, (past, 0))  # a padded token sees itself, so that no row is empty
    return ((valid.unsqueeze(1) & causal) | own).unsqueeze(1)
