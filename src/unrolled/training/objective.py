"""What training makes small: a sum over labels, to be divided once by the labels of a whole step."""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unrolled import config
from unrolled.models.contract import SequenceModel
from unrolled.text import PAD, Batch
from unrolled.training.device import on_device
from unrolled.training.feeding import chosen_inputs

__all__ = ["MicroBatch", "Objective", "PairObjective", "cross_entropy_sum"]


class MicroBatch(Protocol):
    """What the loop knows of a batch, whatever it holds."""

    @property
    def num_labels(self) -> int:
        """Labels that count; the gradient of a step is divided by their number."""

    @property
    def num_tokens(self) -> int:
        """Real symbols that the model reads or predicts."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Where each row stands in the data, for messages."""

    def part(self, rank: int, size: int) -> Self:
        """The rows of one of several processes; there may be none."""


AnyBatch = TypeVar("AnyBatch", bound=MicroBatch, contravariant=True)


class Objective(Protocol[AnyBatch]):
    """What a model is trained to make small; it also decides what the decoder is fed."""

    def loss_sum(self, model: SequenceModel, batch: AnyBatch, *, step: int) -> Tensor:
        """Loss in nats summed over the labels of a batch, with a graph; `step` counts from 1."""

    def state(self) -> dict[str, NDArray[Any]]:
        """What is carried from one step to the next, for exact resume."""

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Put back what `state` gave."""


class PairObjective:
    """Cross entropy of targets given their sources; the decoder is fed what `settings.feeding` says.

    Parameters
    ----------
    settings : config.Training
        Its feeding, label smoothing, precision and seed.
    device : torch.device
        Where the model lies.
    """

    def __init__(self, settings: config.Training, *, device: torch.device) -> None:
        self._settings = settings
        self._device = device

    def loss_sum(self, model: SequenceModel, batch: Batch, *, step: int) -> Tensor:
        """Loss in nats summed over the labels of a batch."""
        settings = self._settings
        source, source_mask, inputs, labels = on_device(batch, self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            inputs = chosen_inputs(
                model,
                source,
                source_mask,
                inputs,
                feeding=settings.feeding,
                step=step,
                seed=settings.seed,
                rows=batch.rows,
            )
            memory = model.encode(source, source_mask)
            logits = model.decode(inputs, memory, model.initial_state(memory, len(source))).logits  # (B, T, V)
        return cross_entropy_sum(logits, labels, label_smoothing=settings.label_smoothing)

    def state(self) -> dict[str, NDArray[Any]]:
        """Nothing is carried from one step to the next."""
        return {}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Nothing to put back."""


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
