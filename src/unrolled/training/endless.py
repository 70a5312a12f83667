"""Steps over examples that never end: each one is drawn when it is needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from unrolled import config
from unrolled.text import Batch, Codec, Examples, FrameBatch
from unrolled.text.tasks import draw_pairs, draw_vectors
from unrolled.training.objective import MicroBatch

__all__ = ["Endless"]


class Endless:
    """Examples of a task in the order of their indices, so that no step sees what another one saw.

    Parameters
    ----------
    draw : callable
        From indices (B,) to a batch.
    settings : config.Training
        Its batch sizes and accumulation.
    epoch_size : int
        How many examples are called an epoch.
    longest : int
        Symbols or vectors of the longest example, which decides how many fit in a batch.
    """

    def __init__(
        self,
        draw: Callable[[NDArray[np.int64]], MicroBatch],
        settings: config.Training,
        *,
        epoch_size: int,
        longest: int,
    ) -> None:
        self._draw = draw
        self._settings = settings
        self._epoch_size = epoch_size
        self._rows = max(1, min(settings.max_batch_size, settings.batch_tokens // longest))

    @classmethod
    def pairs(cls, task: config.PairTask, codec: Codec, settings: config.Training, *, first: Examples) -> Endless:
        """Pairs of a task; the longest of the first epoch decides how many fit in a batch."""

        def draw(rows: NDArray[np.int64]) -> Batch:
            pairs = draw_pairs(task, rows, seed=settings.seed)
            targets = codec.encode_targets(pairs.targets or [])
            return Examples(codec.encode_sources(pairs.sources), targets, rows).batch(np.arange(len(rows)))

        longest = int(first.source.lengths.max() + first.target.lengths.max())
        return cls(draw, settings, epoch_size=task.epoch_size, longest=longest)

    @classmethod
    def vectors(cls, task: config.VectorTask, settings: config.Training) -> Endless:
        """Sequences of vectors of a task."""

        def draw(rows: NDArray[np.int64]) -> FrameBatch:
            return draw_vectors(task, rows, seed=settings.seed)

        return cls(draw, settings, epoch_size=task.epoch_size, longest=draw(np.arange(1)).num_tokens)

    @property
    def num_examples(self) -> int:
        """Examples of an epoch."""
        return self._epoch_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps that an epoch is counted as."""
        return -(-self._epoch_size // (self._rows * self._settings.accumulate))

    @property
    def tokens_per_step(self) -> float:
        """Mean number of real symbols or vectors of a step, as in the first hundred examples."""
        return self._draw(np.arange(100)).num_tokens / 100 * self._rows * self._settings.accumulate

    def epoch_of(self, step: int) -> int:
        """Epoch of a step, both counted from 1; 1 for step 0."""
        return 1 + max(step - 1, 0) // self.steps_per_epoch

    def batches_of(self, step: int) -> list[MicroBatch]:
        """Micro-batches of a step, counted from 1."""
        first, count = (step - 1) * self._settings.accumulate, self._settings.accumulate
        return [self._draw(self._rows * number + np.arange(self._rows)) for number in range(first, first + count)]
