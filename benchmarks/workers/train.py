"""Training steps on the CMU Pronouncing Dictionary: train.py ours|plain|plain-default lstm|transformer.

Batches of 64 words, dropout on, AdamW, clipping, label smoothing. Models: LSTM with `general` attention (bidirectional
encoder, embeddings and states of 256) and a Transformer (4 + 4 layers, 256 / 1024, 4 heads). The plain models are
written the way PyTorch's tutorials write them; `plain` gets the same matrix mode as ours, `plain-default` PyTorch's.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import numpy as np
import torch
from timed import serve
from torch import Tensor, nn
from torch.nn import functional

from unrolled import config, models
from unrolled.commands.cmudict import read_cmudict
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.text import Batch, Codec, Examples, collate, plan_batches
from unrolled.training import PairObjective, Stepper, matrix_mode, probe_matrix_mode

STEPS = 40
"""Of one repetition."""
WIDTH = 256
TRANSFORMER = {"d_model": 256, "d_ff": 1024, "num_layers": 4, "num_heads": 4, "dropout": 0.1}
OURS = {
    "lstm": config.Seq2Seq(
        encoder=config.RecurrentEncoder(embedding_dim=WIDTH, hidden_size=WIDTH, dropout=0.2),
        decoder=config.RecurrentDecoder(embedding_dim=WIDTH, hidden_size=WIDTH, dropout=0.2),
    ),
    "transformer": config.Seq2Seq(
        encoder=config.TransformerEncoder.model_validate(TRANSFORMER),
        decoder=config.TransformerDecoder.model_validate(TRANSFORMER),
    ),
}


class PlainLSTM(nn.Module):
    """A bidirectional LSTM on packed rows, an LSTM decoder in one call, `general` attention after it."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source, WIDTH), nn.Embedding(target, WIDTH)
        self.encoder = nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True)
        self.decoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.start = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.key = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.combine = nn.Linear(3 * WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, target)
        self.dropout = nn.Dropout(0.2)

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        rows = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.source(source)), mask.sum(1), batch_first=True, enforce_sorted=False
        )
        encoded, (h, _) = self.encoder(rows)
        memory, _ = nn.utils.rnn.pad_packed_sequence(encoded, batch_first=True)
        memory = self.dropout(memory)
        start = torch.tanh(self.start(torch.cat([h[0], h[1]], dim=-1)))
        states = tuple(part[None].contiguous() for part in start.chunk(2, dim=-1))
        hidden, _ = self.decoder(self.dropout(self.target(inputs)), states)
        scores = torch.bmm(hidden, self.key(memory).transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf)
        context = torch.bmm(scores.softmax(-1), memory)
        return self.output(self.dropout(torch.tanh(self.combine(torch.cat([context, hidden], dim=-1)))))


class PlainTransformer(nn.Module):
    """`nn.Transformer` with embeddings and learned positions."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source, WIDTH), nn.Embedding(target, WIDTH)
        self.positions = nn.Embedding(64, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 4, 4, 1024, 0.1, batch_first=True, norm_first=True)
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


def batches() -> tuple[list[Batch], Sizes]:
    """An epoch of the dictionary."""
    pairs = [(word, phones) for word, variants in read_cmudict().items() for phones in variants]
    sources, targets = map(list, zip(*pairs, strict=True))
    codec = Codec.fit(config.Data(target=config.Side(units="space")), sources, targets)
    examples = Examples(codec.encode_sources(sources), codec.encode_targets(targets), np.arange(len(pairs)))
    plan = plan_batches(
        examples.source.lengths, examples.target.lengths, batch_tokens=8192, max_batch_size=64, seed=0, epoch=0
    )
    return [collate(examples, rows) for rows in plan], Sizes(len(codec.source), 0, len(codec.target))


def our_step(name: str, sizes: Sizes) -> Callable[[Batch], object]:
    """One optimiser step of ours."""
    settings = OURS[name]
    model = models.build(settings, sizes, initialise(inventory(settings, sizes), 0))
    training = config.Training(max_epochs=1)
    stepper = Stepper(model, PairObjective(training, device=torch.device("cpu")), training.optimizer)
    return lambda batch: stepper.launch([batch], 1.0, step=1).read()


def plain_step(name: str, sizes: Sizes) -> Callable[[Batch], object]:
    """One optimiser step of the plain model."""
    model = {"lstm": PlainLSTM, "transformer": PlainTransformer}[name](sizes.source, sizes.target)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)

    def step(batch: Batch) -> object:
        source, mask, inputs, labels = map(
            torch.from_numpy, (batch.source, batch.source_mask, batch.inputs, batch.labels)
        )
        logits = model(source, mask, inputs).flatten(0, 1)
        loss = functional.cross_entropy(logits, labels.flatten(), ignore_index=0, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    """Serve."""
    who, name = sys.argv[1:]
    work, sizes = batches()
    step = our_step(name, sizes) if who == "ours" else plain_step(name, sizes)
    endless = itertools.cycle(work)

    def some_steps() -> int:
        part = list(itertools.islice(endless, STEPS))
        for batch in part:
            step(batch)
        return sum(len(batch.rows) for batch in part)

    with matrix_mode("default" if who == "plain-default" else probe_matrix_mode()):
        serve(some_steps)


main()
