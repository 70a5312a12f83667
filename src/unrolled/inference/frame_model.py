"""A trained model of vectors: how well it tells what stands beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unrolled.config import FrameData, Frames
from unrolled.errors import ConfigError, DataError
from unrolled.inference.engines import EngineName, choose_engine, sizes_of
from unrolled.metrics import Estimate
from unrolled.metrics.bootstrap import Counts, bootstrap_rate
from unrolled.parameters import inventory
from unrolled.runs import Run
from unrolled.text import FrameBatch, FrameCodec, evaluation_batches, read_pieces
from unrolled.text.tasks import PREFIX, fixed_vectors, is_task, task_type, vector_task_of

if TYPE_CHECKING:
    from unrolled.models.device import DeviceName

__all__ = ["FrameEvaluation", "FrameModel", "frame_losses"]

Losses = Callable[[FrameBatch], NDArray[np.float64]]
"""Loss of each row of a batch, summed over the places that count, (B,)."""
_BATCH_FRAMES, _MAX_ROWS = 1 << 14, 256


@dataclass(frozen=True, kw_only=True)
class FrameEvaluation:
    """How far a model of vectors is from the labels.

    Attributes
    ----------
    name, file : str
        The model and the data.
    loss : Estimate
        A label, in `unit`, with its 95 % interval over the sequences.
    unit : str
    num_sequences, num_labels : int
    best_blind : float, optional
        Of tasks: the least loss of a model that ignores its inputs.
    seconds : float
    """

    name: str
    file: str
    loss: Estimate
    unit: str
    num_sequences: int
    num_labels: int
    best_blind: float | None
    seconds: float
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report as text."""
        loss = self.loss
        mark = [] if self.best_blind is None else [f"at best without reading the inputs: {self.best_blind:.4f}"]
        size = f"{self.num_sequences} sequences, {self.num_labels} labels"
        return [
            f"{self.name} on {self.file}: {size}, {self.seconds:.1f} s",
            f"{self.unit}  {loss.value:.4f} [{loss.low:.4f}, {loss.high:.4f}]  (95 % interval over sequences)",
            *mark,
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "name": self.name,
            "file": self.file,
            "loss": {"value": self.loss.value, "low": self.loss.low, "high": self.loss.high},
            "unit": self.unit,
            "num_sequences": self.num_sequences,
            "num_labels": self.num_labels,
            "best_blind": self.best_blind,
            "seconds": self.seconds,
        }


class FrameModel:
    """A model of vectors that is ready to use; `unrolled.load` makes one.

    Parameters
    ----------
    losses : callable
        See `frame_losses`.
    data : FrameData
        What it was trained on.
    name : str
        What reports call it.
    """

    def __init__(self, losses: Losses, data: FrameData, *, name: str) -> None:
        self._losses = losses
        self._data = data
        self.name = name

    def evaluate(self, test: str | Path) -> FrameEvaluation:
        """Measure the loss on the test part of a file of music, or on the test sequences of the task.

        Raises
        ------
        DataError
            If the file cannot be used, or is not of the kind that the model was trained on.
        """
        task = self._data.task
        if is_task(test) != (task is not None) or (task is not None and task_type(test) != task.type):
            known = "a file of music" if task is None else PREFIX + task.type
            raise DataError(f"{self.name} was trained on {known} and can be tested on nothing else", file=str(test))
        start = time.perf_counter()
        totals, counts = [], []
        for batch in self._batches(test):
            totals.append(self._losses(batch))
            counts.append(batch.counted.sum(axis=1))
        trials = np.concatenate(counts)
        rule = None if task is None else vector_task_of(task)
        return FrameEvaluation(
            name=self.name,
            file=str(test),
            loss=bootstrap_rate(Counts(np.concatenate(totals), trials)),
            unit="nats a frame" if rule is None else rule.unit,
            num_sequences=len(trials),
            num_labels=int(trials.sum()),
            best_blind=None if rule is None else rule.best_loss(),
            seconds=time.perf_counter() - start,
        )

    def _batches(self, test: str | Path) -> Iterator[FrameBatch]:
        if self._data.task is not None:
            rows = np.arange(self._data.task.dev_size)
            for part in np.array_split(rows, -(-len(rows) // _MAX_ROWS)):
                yield fixed_vectors(self._data.task, part, "test")
            return
        pieces = read_pieces(test, "test", num_keys=self._data.num_keys)
        for part in evaluation_batches(pieces.lengths, batch_tokens=_BATCH_FRAMES, max_batch_size=_MAX_ROWS):
            yield pieces.batch(part)


def frame_losses(run: Run, *, engine: EngineName = "auto", device: DeviceName = "auto") -> Losses:
    """Build a run's model from its stored weights, as a function that gives the loss of each row of a batch."""
    settings = run.config.model
    assert isinstance(settings, Frames)
    sizes = sizes_of(FrameCodec.from_json(run.vocabulary()))
    weights = run.weights({parameter.name: parameter.shape for parameter in inventory(settings, sizes)})
    name = choose_engine(engine)
    if name == "bfloat16":
        raise ConfigError(f"{run.path}: a model of vectors computes in float32; use engine torch or numpy")
    if name == "numpy":
        from unrolled import reference

        return _numpy_losses(reference.build(settings, sizes, weights))
    from unrolled import models
    from unrolled.models.device import choose_device

    return _torch_losses(models.build(settings, sizes, weights).eval(), choose_device(device))


def _numpy_losses(model: Any) -> Losses:
    def losses(batch: FrameBatch) -> NDArray[np.float64]:
        outputs = model.decode(batch.inputs, None, model.initial_state(None, len(batch.rows))).logits
        rows = zip(outputs, batch.labels, batch.counted, strict=True)
        return np.array([float(model.head.forward(*(part[None] for part in row))[0]) for row in rows])

    return losses


def _torch_losses(model: Any, device: Any) -> Losses:
    import torch

    model = model.to(device)

    @torch.inference_mode()
    def losses(batch: FrameBatch) -> NDArray[np.float64]:
        inputs, labels, counted = (
            torch.from_numpy(array).to(device) for array in (batch.inputs, batch.labels, batch.counted)
        )
        outputs = model.decode(inputs, None, model.initial_state(None, len(inputs))).logits
        rows = zip(outputs, labels, counted, strict=True)
        return np.array([float(model.head.loss_sum(*(part[None] for part in row))) for row in rows])

    return losses
