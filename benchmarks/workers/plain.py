"""The same models in plain PyTorch, written the way its tutorials write them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from sizes import D_FF, DROPOUT, HEADS, LAYERS, WIDTH
from torch import Tensor, nn

__all__ = ["PLAIN"]

warnings.filterwarnings("ignore", message="enable_nested_tensor")


class Encoder(nn.Module):
    """A bidirectional LSTM on packed rows, and the decoder's start state from its last."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, WIDTH)
        self.layer = nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True)
        self.start = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Memory (B, S, 2H), start states h and c (B, H)."""
        rows = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.embedding(source)), mask.sum(1), batch_first=True, enforce_sorted=False
        )
        output, (h, _) = self.layer(rows)
        memory, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        return self.dropout(memory), *torch.tanh(self.start(torch.cat([h[0], h[1]], dim=-1))).chunk(2, dim=-1)


class Luong(nn.Module):
    """An LSTM decoder in one call, `general` attention after it."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.encoder, self.embedding = Encoder(source), nn.Embedding(target, WIDTH)
        self.decoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.key = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.combine = nn.Linear(3 * WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, target)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        memory, h, c = self.encoder(source, mask)
        states = h[None].contiguous(), c[None].contiguous()
        hidden, _ = self.decoder(self.dropout(self.embedding(inputs)), states)
        scores = torch.bmm(hidden, self.key(memory).transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf)
        context = torch.bmm(scores.softmax(-1), memory)
        return self.output(self.dropout(torch.tanh(self.combine(torch.cat([context, hidden], dim=-1)))))


class InputFeeding(nn.Module):
    """A loop over `nn.LSTMCell`, `general` attention; the attended vector is fed to the next step."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.encoder, self.embedding = Encoder(source), nn.Embedding(target, WIDTH)
        self.cell = nn.LSTMCell(2 * WIDTH, WIDTH)
        self.key = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.combine = nn.Linear(3 * WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, target)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        memory, h, c = self.encoder(source, mask)
        keys, attended, outputs = self.key(memory), torch.zeros_like(h), []
        for x in self.dropout(self.embedding(inputs)).unbind(1):
            h, c = self.cell(torch.cat([x, attended], dim=-1), (h, c))
            scores = torch.bmm(keys, h[:, :, None]).squeeze(2).masked_fill(~mask, -torch.inf)
            context = torch.bmm(scores.softmax(-1)[:, None], memory).squeeze(1)
            attended = torch.tanh(self.combine(torch.cat([context, h], dim=-1)))
            outputs.append(self.output(self.dropout(attended)))
        return torch.stack(outputs, dim=1)


class Bahdanau(nn.Module):
    """A loop over `nn.LSTMCell`, additive attention before it, whose context is part of the cell's input."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.encoder, self.embedding = Encoder(source), nn.Embedding(target, WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.score = nn.Linear(WIDTH, 1, bias=False)
        self.cell = nn.LSTMCell(3 * WIDTH, WIDTH)
        self.combine = nn.Linear(4 * WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, target)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        memory, h, c = self.encoder(source, mask)
        keys, outputs = self.key(memory), []
        for x in self.dropout(self.embedding(inputs)).unbind(1):
            scores = self.score(torch.tanh(self.query(h)[:, None] + keys)).squeeze(2).masked_fill(~mask, -torch.inf)
            context = torch.bmm(scores.softmax(-1)[:, None], memory).squeeze(1)
            h, c = self.cell(torch.cat([x, context], dim=-1), (h, c))
            readout = torch.tanh(self.combine(torch.cat([h, context, x], dim=-1)))
            outputs.append(self.output(self.dropout(readout)))
        return torch.stack(outputs, dim=1)


class Transformer(nn.Module):
    """`nn.Transformer` with embeddings and learned positions."""

    def __init__(self, source: int, target: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source, WIDTH), nn.Embedding(target, WIDTH)
        self.positions = nn.Embedding(64, WIDTH)
        self.transformer = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, D_FF, dropout, batch_first=True, norm_first=True
        )
        self.output = nn.Linear(WIDTH, target)

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        S, T = source.shape[1], inputs.shape[1]
        x = self.source(source) + self.positions(torch.arange(S))
        y = self.target(inputs) + self.positions(torch.arange(T))
        causal = torch.ones(T, T, dtype=torch.bool).triu(1)
        return self.output(
            self.transformer(x, y, tgt_mask=causal, src_key_padding_mask=~mask, memory_key_padding_mask=~mask)
        )


PLAIN: dict[str, Callable[[int, int], nn.Module]] = {
    "lstm": Luong,
    "input-feeding": InputFeeding,
    "bahdanau": Bahdanau,
    "transformer": Transformer,
    "transformer-0": lambda source, target: Transformer(source, target, dropout=0.0),
}
"""By the name that the model has in `ours.MODELS`; each takes the sizes of the vocabularies."""
