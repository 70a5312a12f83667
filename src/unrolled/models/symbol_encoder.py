"""What recurrent and convolutional encoders have in common: layers over the symbols, features beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled.models.contract import Encoded
from unrolled.models.dropout import dropout
from unrolled.models.positions import symbol_positions
from unrolled.models.recurrent import Tokens
from unrolled.parameters import Sizes

__all__ = ["SymbolEncoder"]


class SymbolEncoder(nn.Module):
    """Embedding and a subclass's layers over the symbols; features are memory entries of their own.

    Every symbol's input carries the mean of the row's feature embeddings, and each feature stands in the memory after a
    projection, so that attention can look at it. The order of features does not matter.

    Parameters
    ----------
    sizes : Sizes
    embedding_dim, memory_size : int
        Widths of the embeddings and of the output.
    rate : float
        Of dropout, on the embeddings and on the output.
    """

    def __init__(self, sizes: Sizes, embedding_dim: int, memory_size: int, rate: float) -> None:
        super().__init__()
        self.dropout = rate
        self.first_feature = sizes.source - sizes.features
        self.embedding = nn.Embedding(sizes.source, embedding_dim)
        if sizes.features:
            self.feature_type = nn.Parameter(torch.empty(embedding_dim))
            self.features = nn.Linear(embedding_dim, memory_size)

    def forward(self, source: Tensor, source_mask: Tensor) -> Encoded:
        """Encode ids (B, S)."""
        table = dropout(self.embedding.weight, self.dropout, self.training)
        if not hasattr(self, "features"):
            output, finals = self.run(Tokens(source, table), source_mask)
        else:
            is_feature = source >= self.first_feature
            features = functional.embedding(source, table) + self.feature_type  # used at features only
            weights = (is_feature & source_mask).to(features.dtype)
            mean = weights.unsqueeze(1).bmm(features).squeeze(1) / weights.sum(1, keepdim=True).clamp(min=1)
            output, finals = self.run(Tokens(source, table, mean), source_mask & ~is_feature)
            output = torch.where(is_feature.unsqueeze(-1), self.features(features), output)
        positions = symbol_positions(source, source_mask, self.first_feature)
        return Encoded(dropout(output, self.dropout, self.training), source_mask, positions, finals)

    def run(self, inputs: Tokens, mask: Tensor) -> tuple[Tensor, tuple[tuple[Tensor, ...], ...]]:
        """Output (B, S, M) of the layers over the real symbols (B, S), and their final states."""
        raise NotImplementedError
