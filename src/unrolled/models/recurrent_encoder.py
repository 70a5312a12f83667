"""Recurrent encoder: embedding and recurrent layers over the symbols, features beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled import config
from unrolled.models.contract import Encoded
from unrolled.models.dropout import dropout
from unrolled.models.recurrent import Ragged, RecurrentLayers, Tokens
from unrolled.parameters import Sizes

__all__ = ["RecurrentEncoder"]


class RecurrentEncoder(nn.Module):
    """Embedding and recurrent layers over the symbols; features are memory entries of their own.

    Every symbol's input carries the mean of the row's feature embeddings, and each feature stands in the memory after a
    projection, so that attention can look at it. The order of features does not matter.
    """

    def __init__(self, settings: config.RecurrentEncoder, sizes: Sizes) -> None:
        super().__init__()
        E = settings.embedding_dim
        self.dropout = settings.dropout
        self.is_reversed = settings.is_reversed
        self.first_feature = sizes.source - sizes.features
        self.embedding = nn.Embedding(sizes.source, E)
        self.layers = RecurrentLayers(settings, E, is_bidirectional=settings.is_bidirectional)
        if sizes.features:
            self.feature_type = nn.Parameter(torch.empty(E))
            self.features = nn.Linear(E, config.memory_size(settings))

    def forward(self, source: Tensor, source_mask: Tensor) -> Encoded:
        """Encode ids (B, S)."""
        table = dropout(self.embedding.weight, self.dropout, self.training)
        if not hasattr(self, "features"):
            output, finals = self._recur(Tokens(source, table), source_mask)
        else:
            is_feature = source >= self.first_feature
            features = functional.embedding(source, table) + self.feature_type  # used at features only
            weights = (is_feature & source_mask).to(features.dtype)
            mean = weights.unsqueeze(1).bmm(features).squeeze(1) / weights.sum(1, keepdim=True).clamp(min=1)
            output, finals = self._recur(Tokens(source, table, mean), source_mask & ~is_feature)
            output = torch.where(is_feature.unsqueeze(-1), self.features(features), output)
        return Encoded(dropout(output, self.dropout, self.training), source_mask, finals)

    def _recur(self, inputs: Tokens, mask: Tensor) -> tuple[Tensor, tuple[tuple[Tensor, ...], ...]]:
        ragged = Ragged.from_mask(mask)
        if self.is_reversed:
            inputs = inputs._replace(ids=inputs.ids.gather(1, ragged.mirror))
        output, last = self.layers(self.layers.first.gates(inputs, ragged), None, ragged)
        if self.is_reversed:
            output = output.gather(1, ragged.mirror.unsqueeze(-1).expand_as(output))
        return output, tuple(tuple(state) for state in last)
