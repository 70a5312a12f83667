"""The training objective: cross entropy summed over labels, to be divided once by the labels of a whole step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unrolled.text import PAD

__all__ = ["cross_entropy_sum"]


def cross_entropy_sum(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy in nats, summed over the labels that count.

    ``-sum_t sum_v q_t(v) ln p_t(v)`` with ``q_t = (1 - eps) one_hot(label_t) + eps / V`` over all V classes (Szegedy
    et al. 2016), the true one included. Positions with the label `PAD` add nothing, not even their uniform part.

    Parameters
    ----------
    logits : Tensor (B, T, V)
        Of any float type; the sum is taken in float32 at least.
    labels : int64 Tensor (B, T)
        `PAD` where there is none.
    label_smoothing : float
        eps.

    Returns
    -------
    Tensor ()
        A sum: over micro-batches sums add up, and only their total is divided, once, by the labels of all of them.
        Without any label it is 0, with zero gradients.
    """
    flat = logits.flatten(0, -2)  # (B T, V)
    flat = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
    return functional.cross_entropy(
        flat, labels.flatten(), ignore_index=PAD, label_smoothing=label_smoothing, reduction="sum"
    )
