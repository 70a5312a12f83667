"""Recurrent encoder."""

from __future__ import annotations

from torch import Tensor

from unrolled import config
from unrolled.models.recurrent import Ragged, RecurrentLayers, Tokens
from unrolled.models.symbol_encoder import SymbolEncoder
from unrolled.parameters import Sizes

__all__ = ["RecurrentEncoder"]


class RecurrentEncoder(SymbolEncoder):
    """Recurrent layers over the symbols, in one or both directions."""

    def __init__(self, settings: config.RecurrentEncoder, sizes: Sizes) -> None:
        E = settings.embedding_dim
        super().__init__(sizes, E, config.memory_size(settings), settings.dropout)
        self.is_reversed = settings.is_reversed
        self.layers = RecurrentLayers(settings, E, is_bidirectional=settings.is_bidirectional)

    def run(self, inputs: Tokens, mask: Tensor) -> tuple[Tensor, tuple[tuple[Tensor, ...], ...]]:
        """Output (B, S, M) of the layers over the real symbols (B, S), and their final states."""
        ragged = Ragged.from_mask(mask)
        if self.is_reversed:
            inputs = inputs._replace(ids=inputs.ids.gather(1, ragged.mirror))
        output, last = self.layers(inputs, None, ragged, self.layers.weights())
        if self.is_reversed:
            output = output.gather(1, ragged.mirror.unsqueeze(-1).expand_as(output))
        return output, tuple(tuple(state) for state in last)
