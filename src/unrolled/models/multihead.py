"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): of a sequence to itself, of a decoder to the memory."""

from __future__ import annotations

from typing import NamedTuple, Self, cast

from torch import Tensor, nn

from unrolled.models.attention import dot_product_attention, dot_product_weights, join_heads, split_heads
from unrolled.models.cache import KeysValues
from unrolled.models.contract import Encoded, folded, selected
from unrolled.models.positions import rotated

__all__ = ["CrossAttention", "LayeredMemory", "SelfAttention"]


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, queries, keys and values in one product."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def project(self, x: Tensor, turn: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head, (B, N, T, K) each; with rotary positions as their turns say."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, T, 3, N, K)
        if turn is None:
            query, keys, values = qkv.unbind(2)
        else:
            turned, rest = qkv.split([2, 1], dim=2)
            (query, keys), values = rotated(turned, turn).unbind(2), rest.squeeze(2)
        return query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


class CrossAttention(nn.Module):
    """Multi-head attention from the decoder to the memory."""

    def __init__(self, d_model: int, memory_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(memory_size, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def prepare(self, output: Tensor, turn: Tensor | None = None) -> KeysValues:
        """Keys and values of every head, once a source; with rotary positions as its turns say."""
        keys, values = self.kv(output).unflatten(-1, (2, self.num_heads, -1)).unbind(2)  # (B, S, N, K)
        if turn is not None:
            keys = rotated(keys.unsqueeze(2), turn).squeeze(2)
        # contiguous, else every step would copy them to multiply
        return KeysValues(keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous())

    def forward(
        self, x: Tensor, memory: KeysValues, mask: Tensor, turn: Tensor | None = None, *, need_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from x (R, n, D); rows of a source are folded into its query axis. Weights are (R, N, n, S)."""
        query = self.query(x)
        if turn is not None:
            query = rotated(query.unflatten(-1, (1, self.num_heads, -1)), turn).flatten(2)
        query = split_heads(folded(query, len(mask)), self.num_heads)  # (B, N, k·n, K)
        allowed = mask[:, None, None, :]
        context = join_heads(dot_product_attention(query, memory.keys, memory.values, allowed))
        attended: Tensor = self.out(context.reshape(*x.shape[:2], -1))
        if not need_attention:
            return attended, None
        weights = dot_product_weights(query, memory.keys, allowed).transpose(1, 2)  # (B, k·n, N, S)
        return attended, weights.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class LayeredMemory(NamedTuple):
    """The encoder's mask (B, S) and each layer's keys and values of it, (B, N, S, K)."""

    mask: Tensor
    layers: tuple[KeysValues, ...]

    def select(self, sources: Tensor) -> Self:
        """Memory of these sources alone."""
        return selected(self, sources)

    @classmethod
    def of_layers(cls, layers: nn.ModuleList, encoded: Encoded, turn: Tensor | None = None) -> Self:
        """Compute once a source what the `cross` of every layer looks at."""
        crosses = (cast("CrossAttention", layer.cross) for layer in layers)
        return cls(encoded.mask, tuple(cross.prepare(encoded.output, turn) for cross in crosses))
