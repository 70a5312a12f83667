"""Steps over examples that never end: each one is drawn when it is needed."""

from __future__ import annotations

import numpy as np

from unrolled import config
from unrolled.text import Batch, Codec, Examples, collate
from unrolled.text.tasks import draw_pairs

__all__ = ["EndlessPairs"]


class EndlessPairs:
    """Pairs of a task in the order of their indices, so that no step sees what another one saw.

    Parameters
    ----------
    task : config.PairTask
        Its `epoch_size` is how many pairs are called an epoch.
    codec : Codec
    settings : config.Training
        Its batch sizes, accumulation and seed.
    first : Examples
        The first epoch; its longest pair decides how many fit in a batch.
    """

    def __init__(self, task: config.PairTask, codec: Codec, settings: config.Training, *, first: Examples) -> None:
        self._task = task
        self._codec = codec
        self._settings = settings
        longest = int(first.source.lengths.max() + first.target.lengths.max())
        self._rows = max(1, min(settings.max_batch_size, settings.batch_tokens // longest))
        self._tokens_per_pair = (first.source.values.size + first.target.values.size) / len(first)

    @property
    def num_examples(self) -> int:
        """Pairs of an epoch."""
        return self._task.epoch_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps that an epoch is counted as."""
        return -(-self._task.epoch_size // (self._rows * self._settings.accumulate))

    @property
    def tokens_per_step(self) -> float:
        """Mean number of real symbols of a step, both sides, as in the first epoch."""
        return self._tokens_per_pair * self._rows * self._settings.accumulate

    def epoch_of(self, step: int) -> int:
        """Epoch of a step, both counted from 1; 1 for step 0."""
        return 1 + max(step - 1, 0) // self.steps_per_epoch

    def batches_of(self, step: int) -> list[Batch]:
        """Micro-batches of a step, counted from 1."""
        first = (step - 1) * self._settings.accumulate
        return [self._batch(first + place) for place in range(self._settings.accumulate)]

    def _batch(self, number: int) -> Batch:
        rows = np.arange(number * self._rows, (number + 1) * self._rows)
        pairs = draw_pairs(self._task, rows, seed=self._settings.seed)
        targets = self._codec.encode_targets(pairs.targets or [])
        return collate(Examples(self._codec.encode_sources(pairs.sources), targets, rows), np.arange(len(rows)))
