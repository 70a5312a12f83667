"""Which micro-batches each step of a run is made of: a function of the examples and the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unrolled import config
from unrolled.text import plan_batches
from unrolled.training.objective import MicroBatch

__all__ = ["Collection", "Epochs", "Steps"]


class Steps(Protocol):
    """Micro-batches of each step, a function of the data and the settings alone; steps and epochs count from 1."""

    @property
    def num_examples(self) -> int:
        """Pairs, or whatever the data is counted in."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which everything is seen once."""

    @property
    def tokens_per_step(self) -> float:
        """Mean number of real symbols of a step."""

    def epoch_of(self, step: int) -> int:
        """Epoch of a step; 1 for step 0."""

    def batches_of(self, step: int) -> Sequence[MicroBatch]:
        """Micro-batches of a step."""


class Collection(Protocol):
    """Examples that can be put into batches: pairs, or pieces of music."""

    def __len__(self) -> int: ...

    @property
    def num_tokens(self) -> int:
        """Real symbols of all examples."""

    @property
    def side_lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lengths of both sides of each example, (N,) each."""

    def batch(self, rows: NDArray[np.int64]) -> MicroBatch:
        """The examples with these indices."""


class Epochs:
    """Epoch after epoch of batches, `accumulate` of them a step, the last step of an epoch with what is left.

    Parameters
    ----------
    examples : Collection
    settings : config.Training
        Its batch sizes, accumulation and seed.
    """

    def __init__(self, examples: Collection, settings: config.Training) -> None:
        self._examples = examples
        self._settings = settings
        self._epoch = 0
        self._plan = self._plan_of(0)
        self._steps_per_epoch = -(-len(self._plan) // settings.accumulate)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every example is seen once."""
        return self._steps_per_epoch

    @property
    def num_examples(self) -> int:
        """Examples that are trained on."""
        return len(self._examples)

    @property
    def tokens_per_step(self) -> float:
        """Mean number of real symbols of a step."""
        return self._examples.num_tokens / self.steps_per_epoch

    def epoch_of(self, step: int) -> int:
        """Epoch of a step, both counted from 1; 1 for step 0."""
        return 1 + max(step - 1, 0) // self.steps_per_epoch

    def batches_of(self, step: int) -> list[MicroBatch]:
        """Micro-batches of a step, counted from 1."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._plan_of(epoch)
        count = self._settings.accumulate
        return [self._examples.batch(rows) for rows in self._plan[place * count : (place + 1) * count]]

    def _plan_of(self, epoch: int) -> list[NDArray[np.int64]]:
        return plan_batches(
            *self._examples.side_lengths,
            batch_tokens=self._settings.batch_tokens,
            max_batch_size=self._settings.max_batch_size,
            seed=self._settings.seed,
            epoch=epoch,
        )
