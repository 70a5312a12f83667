"""Training steps on the CMU Pronouncing Dictionary: train.py ours|plain|plain-default MODEL STEPS.

Batches of 64 words, AdamW, clipping, label smoothing; the models stand in `ours.py` and `plain.py`. `plain` gets the
same matrix mode as ours, `plain-default` PyTorch's.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from files import TRAIN, read_columns
from ours import DATA, MODELS
from plain import PLAIN
from sizes import BATCH
from timed import serve_rate
from torch import nn
from torch.nn import functional

from unrolled import config, models
from unrolled.commands import keep_memory
from unrolled.commands.products import fast_products
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.text import Batch, Codec, Examples, collate, plan_batches
from unrolled.training import PairObjective, Stepper


def batches() -> tuple[list[Batch], Sizes]:
    """An epoch of the words."""
    sources, targets = read_columns(TRAIN)
    codec = Codec.fit(DATA, sources, targets)
    examples = Examples(codec.encode_sources(sources), codec.encode_targets(targets), np.arange(len(sources)))
    plan = plan_batches(
        examples.source.lengths, examples.target.lengths, batch_tokens=8192, max_batch_size=BATCH, seed=0, epoch=0
    )
    return [collate(examples, rows) for rows in plan], Sizes(len(codec.source), 0, len(codec.target))


def our_step(name: str, sizes: Sizes) -> Callable[[Batch], object]:
    """One optimiser step of ours."""
    settings = MODELS[name]
    model = models.build(settings, sizes, initialise(inventory(settings, sizes), 0))
    training = config.Training(max_epochs=1)
    stepper = Stepper(model, PairObjective(training, device=torch.device("cpu")), training.optimizer)
    return lambda batch: stepper.launch([batch], 1.0, step=1).read()


def plain_step(name: str, sizes: Sizes) -> Callable[[Batch], object]:
    """One optimiser step of the plain model."""
    model = PLAIN[name](sizes.source, sizes.target)
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
    who, name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if who == "ours":
        keep_memory()
    work, sizes = batches()
    step = our_step(name, sizes) if who == "ours" else plain_step(name, sizes)
    endless = itertools.cycle(work)

    def some_steps() -> int:
        part = list(itertools.islice(endless, steps))
        for batch in part:
            step(batch)
        return sum(len(batch.rows) for batch in part)

    with nullcontext() if who == "plain-default" else fast_products():
        serve_rate(some_steps)


main()
