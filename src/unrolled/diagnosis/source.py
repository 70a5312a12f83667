"""Whether the output depends on the source, and on its order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from unrolled.diagnosis.adapter import Adapter, Subject, chance_level
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.regions import ROUNDING, difference
from unrolled.diagnosis.untouched import jittered, untouched

__all__ = ["check_source"]


def check_source(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether the output depends on the source at all.

    Untrained models: another source must change the logits, and so must the same source backwards. Trained models
    (loss under 0.9 · ln V): with the sources of other examples the loss must rise by at least 1 %.

    Returns
    -------
    list of Finding
        `source_ignored` or `order_ignored`; empty without a source.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    if batch.source is None:
        return []
    with untouched(subject.module), subject.mode(), torch.no_grad():
        if max(_effect(subject, batch), _jittered_effect(subject, batch)) == 0:
            return [finding("source_ignored", "another source leaves every logit as it was")]
        if _is_blind_to_order(subject, batch):
            return [finding("order_ignored", "the source backwards gives the same logits", where=Where("the encoder"))]
        return _swapped_sources(subject, batch) if batch.size > 1 and batch.has_classes else []


def _effect(subject: Subject, batch: Batch) -> float:
    assert batch.real_source is not None
    other = batch.with_source_altered(torch.ones_like(batch.real_source))
    return difference(subject.logits(batch), subject.logits(other))


def _jittered_effect(subject: Subject, batch: Batch) -> float:
    with jittered(subject.module), subject.mode():
        return _effect(subject, batch)


def _is_blind_to_order(subject: Subject, batch: Batch) -> bool:
    """Whether reversing the real symbols of each source, its last one (an end symbol) excepted, changes nothing."""
    source, real = batch.source, batch.real_source
    assert source is not None and real is not None
    steps, last = torch.arange(source.shape[1]).to(source.device), real.sum(1)[:, None] - 2
    order = torch.where(steps <= last, last - steps, steps)
    backwards = torch.stack([row[places] for row, places in zip(source, order, strict=True)])
    is_ragged_right = bool((real[:, 1:] <= real[:, :-1]).all())
    if not is_ragged_right or torch.equal(backwards, source):
        return False
    with jittered(subject.module), subject.mode():
        other = subject.logits(replace(batch, source=backwards))
        return difference(subject.logits(batch), other) <= ROUNDING


def _swapped_sources(subject: Subject, batch: Batch) -> list[Finding]:
    order = torch.arange(batch.size).roll(1)
    others = batch.rows(order)
    subject, logits = Subject(subject.model, replace(subject.adapter, loss=None)), subject.logits(batch)
    own = float(subject.loss(batch, logits))
    swapped = float(subject.loss(replace(batch, source=others.source, source_mask=others.source_mask)))
    if own > 0.9 * chance_level(logits) or swapped > 1.01 * own:
        return []
    what = f"loss {own:.3f} with the right sources, {swapped:.3f} with those of other examples"
    return [finding("source_ignored", what)]
