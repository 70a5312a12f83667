"""Whether a model can learn a handful of examples by heart, and what the lowest possible loss is."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.untouched import jittered, reseed, untouched

__all__ = ["check_overfits_one_batch", "lowest_loss"]


def check_overfits_one_batch(
    model: Any,
    batch: Any,
    *,
    adapter: Adapter | None = None,
    rows: int = 4,
    steps: int = 300,
    learning_rates: tuple[float, ...] = (1e-2, 1e-3),
) -> list[Finding]:
    """Whether a few examples can be learnt by heart, on a copy of the weights and without dropout.

    The best possible loss is the entropy of the labels given everything before them in the same batch (equal prefixes
    may go on differently). First outputs that no weight moves, such as zeros for the start symbol, are left out. Adam
    must cover 90 % of the way from the first loss to it.

    Parameters
    ----------
    rows : int
        Examples, the first ones of the batch.
    steps : int
        Steps for each learning rate; it ends as soon as the loss is low enough.
    learning_rates : tuple of float
        Tried in turn.

    Returns
    -------
    list of Finding
        `cannot_overfit`.
    """
    batch = Batch.of(batch)
    if batch.has_classes:  # plain cross entropy: its lowest value is known, that of a smoothed one is not
        adapter = replace(adapter or Adapter(), loss=None)
    subject = Subject(model, adapter)
    if not (batch.has_classes or subject.adapter.loss) or not any(w.requires_grad for w in subject.parameters.values()):
        return []
    few, fixed = _learnable(subject, batch.rows(torch.arange(min(rows, batch.size))))
    floor = lowest_loss(few) if batch.has_classes else 0.0
    best, first = math.inf, math.nan
    for rate in learning_rates:
        with untouched(subject.module, keep_weights=False), subject.mode():
            first = float(subject.loss(few).detach())
            if first - floor < 0.1:
                return []
            best = min(best, _trained(subject, few, rate=rate, steps=steps, enough=floor + 0.1 * (first - floor)))
        if best <= floor + 0.1 * (first - floor):
            return []
    measured = (
        f"{few.size} examples: loss {first:.3f} at first, {best:.3f} at best after {steps} steps,"
        f" {floor:.3f} is possible"
    )
    if not fixed:
        return [finding("cannot_overfit", measured)]
    measured += f"; the logits at step {fixed[0]} depend on no weight"
    return [finding("cannot_overfit", measured, where=Where(None, fixed[0]))]


def _learnable(subject: Subject, batch: Batch) -> tuple[Batch, list[int]]:
    """Leave out labels of first steps whose logits no weight moves; also give all other steps of that kind.

    Zeros in the place of the start symbol, as some tutorials have them, cost ln V for ever and are not in their loss.
    """
    with untouched(subject.module), subject.mode(), torch.no_grad():
        own = subject.logits(batch)
    with jittered(subject.module), subject.mode(), torch.no_grad():
        is_fixed = (own == subject.logits(batch)).flatten(2).all(2).all(0)  # (T,)
    assert batch.labels is not None
    fixed = is_fixed.nonzero().flatten().tolist()
    if not batch.has_classes or own.shape[:2] != batch.labels.shape:
        return batch, fixed
    is_first = is_fixed.long().cumprod(0).bool()
    labels = batch.labels.masked_fill(is_first, batch.ignored)
    if labels.eq(batch.ignored).all():  # nothing else to learn
        return batch, fixed
    return replace(batch, labels=labels), [step for step in fixed if not is_first[step]]


def _trained(subject: Subject, batch: Batch, *, rate: float, steps: int, enough: float) -> float:
    reseed()
    weights = [weight for weight in subject.parameters.values() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=rate)
    best = math.inf
    for _ in range(steps):
        loss = subject.loss(batch)
        best = min(best, float(loss.detach())) if loss.isfinite() else best
        if best <= enough or not loss.requires_grad or not loss.isfinite():
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    return best


def lowest_loss(batch: Batch) -> float:
    """Entropy of the labels given source and inputs so far, nats per label: no model of this batch can do better."""
    assert batch.labels is not None
    sources = [None] * batch.size if batch.source is None else [_content(row) for row in batch.source]
    outcomes: dict[Hashable, Counter[int]] = defaultdict(Counter)
    for row, labels in enumerate(batch.labels.tolist()):
        for step, label in enumerate(labels):
            if label != batch.ignored:
                seen = batch.inputs[row] if batch.is_of_sequences else batch.inputs[row, : step + 1]
                outcomes[sources[row], _content(seen)][label] += 1
    total = sum(counts.total() for counts in outcomes.values())
    nats = sum(-n * math.log(n / counts.total()) for counts in outcomes.values() for n in counts.values())
    return nats / max(total, 1)


def _content(row: Tensor) -> Hashable:
    return row.cpu().numpy().tobytes()
