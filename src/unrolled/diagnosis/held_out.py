"""What a trained model makes of pairs: whether it beats symbol frequencies, on held-out pairs too, and looks around."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.untouched import untouched
from unrolled.text import PAD, UNK, Codec, Pairs

__all__ = [
    "check_attention_moves",
    "check_generalisation",
    "check_left_out",
    "check_unknown_symbols",
    "frequency_entropy",
]

Blind = Callable[[Batch, Batch], float]

NO_BETTER = 0.98
"""Of the entropy of symbol frequencies: what a model reaches without a look at anything."""
LEARNT = 0.8
"""Of the same: a model that is below it on training pairs has learnt something."""
STILL = 0.02
"""Mean distance of a step's attention from the mean over steps, 0 to 1."""
FEW = 0.01
MANY = 0.1


def frequency_entropy(train: Batch, batch: Batch) -> float:
    """Cross entropy of a batch's labels under the frequencies of the training labels, each counted once more."""
    assert train.labels is not None and batch.labels is not None
    counts = torch.bincount(train.labels[train.labels != PAD], minlength=int(batch.labels.max()) + 1).double()
    logits = (counts + (counts == 0)).log()
    labels = batch.labels[batch.labels != PAD]
    return float(cross_entropy(logits.expand(len(labels), -1), labels))


def check_generalisation(
    model: Any, train: Batch, dev: Batch | None, *, adapter: Adapter | None = None, blind: Blind = frequency_entropy
) -> list[Finding]:
    """Whether the loss is below that of a constant answer, on training examples and on held-out ones.

    A model that ignores everything can answer each symbol with its frequency; its loss is their entropy H.

    Parameters
    ----------
    blind : callable
        `blind(train, batch)`: loss on a batch of the best constant answer, learnt from the training batch.

    Returns
    -------
    list of Finding
        `loss_stuck` where training pairs are not better than H; `learnt_by_heart` where they are and held-out ones
        are not.
    """
    entropy, own = blind(train, train), _loss(model, train, adapter)
    if own > NO_BETTER * entropy:
        measured = f"loss {own:.3f} on training data, where the best constant answer has {entropy:.3f}"
        if train.has_classes:
            measured += f"; ln V = {math.log(_num_symbols(model, train)):.3f}"
        return [finding("loss_stuck", measured)]
    if dev is None or own > LEARNT * entropy:
        return []
    alone, other = blind(train, dev), _loss(model, dev, adapter)
    if other <= alone:
        return []
    measured = (
        f"loss {own:.3f} on training data, {other:.3f} on held-out data, where the best constant answer has {alone:.3f}"
    )
    return [finding("learnt_by_heart", measured)]


def check_attention_moves(model: Any, batch: Batch) -> list[Finding]:
    """Whether attention changes from one output symbol to the next, in models that have not learnt yet.

    A fixed look at the source can be enough for an encoder that has read all of it; a model under half of ln V is left
    alone.
    """
    weights = _attention(model, batch)
    if weights is None or _loss(model, batch) < 0.5 * math.log(_num_symbols(model, batch)):
        return []
    assert batch.labels is not None
    real = batch.labels.ne(batch.ignored).double()[..., None]  # (B, T, 1)
    mean = (weights * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1.0)  # (B, 1, S)
    distance = ((weights - mean).abs().sum(-1) / 2 * real[..., 0]).sum() / real.sum()
    if float(distance) >= STILL:
        return []
    measured = f"the attention of a step differs from the mean of its sequence by {float(distance):.2%} of its weight"
    return [finding("attention_stands_still", measured, where=Where("decoder"))]


def check_unknown_symbols(batch: Batch, *, name: str) -> list[Finding]:
    """Whether at most 1 % of the symbols of a batch are unknown to the model, and not all its sources look alike."""
    found = []
    for side, ids in (("source", batch.source), ("target", batch.labels)):
        if ids is None:
            continue
        unknown, total = int((ids == UNK).sum()), int((ids != PAD).sum())
        if unknown > FEW * total:
            measured = f"{unknown} of {total} {side} symbols are unknown to the model"
            found.append(finding("unknown_symbols", measured, where=_place(name, batch, (ids == UNK).any(1))))
    if batch.source is not None and batch.size > 1 and bool((batch.source == batch.source[:1]).all()):
        measured = f"all {batch.size} sources that were looked at are the same to the model"
        found.append(finding("source_ignored", measured, where=_place(name, batch, batch.source[:, 0] >= 0)))
    return found


def check_left_out(codec: Codec, pairs: Pairs) -> list[Finding]:
    """Whether at most a tenth of the pairs are over the length limits and were dropped."""
    if codec.data.over_long == "cut":
        return []
    sources, targets = codec.encode_sources(pairs.sources).lengths, codec.encode_targets(pairs.targets or []).lengths
    is_long = (sources > codec.data.source.max_length) | (targets > codec.data.target.max_length)
    if is_long.mean() <= MANY:
        return []
    measured = (
        f"{int(is_long.sum())} of {len(pairs)} pairs are over data.source.max_length={codec.data.source.max_length} or"
        f" data.target.max_length={codec.data.target.max_length} and were left out"
    )
    return [finding("pairs_left_out", measured, where=Where(pairs.file, line=int(pairs.lines[is_long][0])))]


def _place(name: str, batch: Batch, rows: Tensor) -> Where:
    line = None if batch.lines is None else batch.lines[int(rows.nonzero()[0])]
    return Where(name, line=line)


def _loss(model: Any, batch: Batch, adapter: Adapter | None = None) -> float:
    """Loss a label in evaluation mode, without smoothing."""
    subject = Subject(model, adapter)
    with untouched(subject.module), subject.mode(), torch.no_grad():
        return float(subject.loss(batch))


def _num_symbols(model: Any, batch: Batch) -> int:
    subject = Subject(model)
    with untouched(subject.module), subject.mode(), torch.no_grad():
        return int(subject.logits(batch.rows(torch.tensor([0]))).shape[-1])


def _attention(model: Any, batch: Batch) -> Tensor | None:
    """Weights (B, T, S) of a model that keeps the decoder contract; none where it has none."""
    subject = Subject(model)
    if not subject.has_contract or batch.source is None:
        return None
    with untouched(subject.module), subject.mode(), torch.no_grad():
        memory = model.encode(batch.source, batch.real_source)
        state = model.initial_state(memory, batch.size)
        weights = model.decode(batch.inputs, memory, state, need_attention=True).attention
    return None if weights is None else weights.double()
