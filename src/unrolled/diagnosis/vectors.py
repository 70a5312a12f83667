"""Models of vectors under examination: their batches, the loss of their heads, and what a constant answer reaches."""

from __future__ import annotations

import torch
from torch import Tensor

from unrolled.diagnosis.adapter import Loss
from unrolled.diagnosis.batch import NO_LABEL, Batch
from unrolled.models.heads import HEADS
from unrolled.text import FrameBatch

__all__ = ["constant_loss", "head_loss", "vector_batch"]


def vector_batch(batch: FrameBatch) -> Batch:
    """A batch whose labels say themselves which of them count: not `NO_LABEL`, nor NaN where labels are numbers."""
    labels, counted = torch.from_numpy(batch.labels), torch.from_numpy(batch.counted)  # (B, T) or (B, T, O); (B, T)
    if labels.is_floating_point():
        labels = labels.masked_fill(~counted[..., None], torch.nan)
    else:
        labels = labels.masked_fill(~counted, NO_LABEL)
    mask = torch.arange(counted.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
    return Batch(inputs=torch.from_numpy(batch.inputs), labels=labels, mask=mask, ignore_index=NO_LABEL)


def head_loss(head: str) -> Loss:
    """The training loss of a head, a label that counts."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        counted = _counted(labels)
        known = labels.nan_to_num() if labels.is_floating_point() else labels  # NaN would reach the gradient
        return HEADS[head].loss_sum(outputs, known, counted) / counted.sum()

    return loss


def constant_loss(head: str, train: Batch, batch: Batch) -> float:
    """Loss a label of a model that ignores its inputs, with the constant outputs that fit the training labels best.

    They are the log-odds of each base rate, the mean, or the logarithms of the frequencies of classes; rates and
    frequencies count everything once more than it was seen.
    """
    assert train.labels is not None and batch.labels is not None
    seen = train.labels[_counted(train.labels)]  # (n,) or (n, O)
    if head == "regression":
        outputs = seen.mean(0)
    elif head == "bernoulli":
        outputs = ((seen.sum(0) + 1) / (len(seen) + 2)).logit()
    else:
        size = int(max(seen.max(), batch.labels.max())) + 1
        outputs = (torch.bincount(seen, minlength=size) + 1.0).log()
    return float(head_loss(head)(outputs.expand(*batch.labels.shape[:2], -1), batch.labels))


def _counted(labels: Tensor) -> Tensor:
    """Places (B, T) whose label counts."""
    return ~labels.isnan().any(-1) if labels.is_floating_point() else labels != NO_LABEL
