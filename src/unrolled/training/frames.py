"""Training on sequences of vectors: the loss of a batch, and the held-out sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unrolled import config
from unrolled.models.contract import SequenceModel
from unrolled.models.heads import HEADS, Head
from unrolled.text import FrameBatch, Pieces, evaluation_batches
from unrolled.text.tasks import fixed_vectors
from unrolled.training.evaluation import Score

__all__ = ["FrameDev", "FrameObjective", "held_out"]

_FRAMES, _MAX_ROWS = 1 << 14, 256  # of a batch


class FrameObjective:
    """What the head makes of the outputs beside each vector.

    Parameters
    ----------
    head : str
        Of `config.Frames`.
    settings : config.Training
        Its precision.
    device : torch.device
        Where the model lies.
    """

    def __init__(self, head: str, settings: config.Training, *, device: torch.device) -> None:
        self._head = HEADS[head]
        self._is_bfloat16 = settings.precision == "bfloat16"
        self._device = device

    def loss_sum(self, model: SequenceModel, batch: FrameBatch, *, step: int) -> Tensor:
        """Loss summed over the labels of a batch."""
        del step
        return _loss_sum(model, self._head, batch, self._device, is_bfloat16=self._is_bfloat16)

    def state(self) -> dict[str, NDArray[Any]]:
        """Nothing is carried from one step to the next."""
        return {}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Nothing to put back."""


def held_out(pieces: Pieces | None, task: config.VectorTask | None) -> list[FrameBatch]:
    """Dev sequences in batches: all pieces, longest first, or those of a task."""
    if task is not None:
        rows = np.arange(task.dev_size)
        return [fixed_vectors(task, part, "dev") for part in np.array_split(rows, -(-len(rows) // _MAX_ROWS))]
    assert pieces is not None
    return list(map(pieces.batch, evaluation_batches(pieces.lengths, batch_tokens=_FRAMES, max_batch_size=_MAX_ROWS)))


class FrameDev:
    """Scores a model on held-out sequences.

    Parameters
    ----------
    batches : sequence of FrameBatch
        All of them.
    head : str
        Of `config.Frames`.
    device : torch.device
        Where the model lies.
    """

    def __init__(self, batches: Sequence[FrameBatch], head: str, *, device: torch.device) -> None:
        self._batches = batches
        self._head = HEADS[head]
        self._device = device

    @torch.inference_mode()
    def score(self, model: nn.Module, *, should_stop: Callable[[], bool] = lambda: False) -> Score | None:
        """Score a model in evaluation mode; it is put back as it was."""
        was_training, total, num_labels = model.training, 0.0, 0
        model.eval()
        try:
            for batch in self._batches:
                if should_stop():
                    return None
                total += float(_loss_sum(model, self._head, batch, self._device))  # type: ignore[arg-type]
                num_labels += batch.num_labels
        finally:
            model.train(was_training)
        return Score(loss=total / num_labels, value=total / num_labels, num_labels=num_labels)


def _loss_sum(
    model: SequenceModel, head: Head, batch: FrameBatch, device: torch.device, *, is_bfloat16: bool = False
) -> Tensor:
    inputs, labels, counted = (
        torch.from_numpy(array).to(device) for array in (batch.inputs, batch.labels, batch.counted)
    )
    with torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16):
        outputs = model.decode(inputs, None, model.initial_state(None, len(inputs))).logits  # (B, T, O)
    return head.loss_sum(outputs.float(), labels, counted)
