"""Yoyodyne's own fit loop: yoyodyne_train.py MODEL STEPS.

Counted are the words of STEPS batches of 64 over the seconds from the first batch's start to the last one's end, with
the batches that its data loader prepares in between; start-up, validation, saving and progress bars are not.
"""

from __future__ import annotations

import sys
import time

from lightning.pytorch import Callback
from timed import answer, is_asked
from yoyodyne_models import make_model, read_data, trainer


class Turns(Callback):
    """Hold the loop before every STEPS batches until it is asked to go on; the first ones warm up."""

    def __init__(self, steps: int) -> None:
        self.steps, self.taken, self.words, self.begin = steps, 0, 0, time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:  # noqa: ARG002
        """Count, answer, and wait."""
        self.words += len(batch)
        self.taken += 1
        if self.taken % self.steps == 0:
            answer(self.words / (time.perf_counter() - self.begin))
            trainer.should_stop = not is_asked()
            self.words, self.begin = 0, time.perf_counter()


def main() -> None:
    """Serve."""
    name, steps = sys.argv[1], int(sys.argv[2])
    data = read_data()
    trainer(callbacks=(Turns(steps),)).fit(make_model(name, data), data)


main()
