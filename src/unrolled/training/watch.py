"""The watch over a training: it ends one that cannot come to anything, and leaves every other alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from unrolled.errors import DivergenceError
from unrolled.models.contract import SequenceModel
from unrolled.text import PAD, Batch
from unrolled.training.device import on_device
from unrolled.training.events import Event, StepTaken

__all__ = ["Watch", "source_effect"]

WINDOW = 500
"""Steps after the warm-up that are judged together."""
STUCK = 0.999
"""Of ln V. Whatever a model learns first brings it lower: that padding and the start symbol are never labels, where the
end symbol stands, how frequent symbols are."""
FALLING = 2.0
"""Standard errors by which the mean of a window has to be below that of the window before."""
DECAYED = 0.5
"""Share of the highest learning rate. A rate that was far too high may become right; until it has come down, a loss
that stays high proves nothing."""
ROUNDING = 1e-6


class Watch:
    """A listener of training that raises where going on is hopeless.

    After the warm-up, every 500 steps:

    - the loss is stuck at ln V or above it: the means of two windows in a row are not below 0.999 ln V, the second not
      below the first by two standard errors, and the learning rate is constant or has come down to half;
    - the source is ignored: sources of other examples change no logit by more than rounding. A
      model that could use its source, and does not yet, is never so exact.

    Parameters
    ----------
    num_symbols : int
        V, the symbols that the model can write.
    warmup_steps : int
    effect : callable, optional
        Gives the largest change of a logit under the sources of other examples; see `source_effect`. None for a model
        without a source.
    """

    def __init__(self, *, num_symbols: int, warmup_steps: int, effect: Callable[[], float] | None = None) -> None:
        self._chance = math.log(num_symbols)
        self._warmup_steps = warmup_steps
        self._effect = effect
        self._losses: list[float] = []
        self._before: tuple[float, float] | None = None  # mean and squared standard error of the last window
        self._rates = (0.0, 0.0)  # the highest so far, and that of the step before

    def __call__(self, event: Event) -> None:
        """Take in a step.

        Raises
        ------
        DivergenceError
            If training is hopeless; its `fault` is the name that diagnosis gives it.
        """
        if not isinstance(event, StepTaken) or event.step <= self._warmup_steps:
            return
        self._losses.append(event.loss)
        highest, last = self._rates
        self._rates = max(highest, event.learning_rate), event.learning_rate
        if len(self._losses) == WINDOW:
            self._judge_source(event.step)
            self._judge_loss(event.step, is_decaying=event.learning_rate < last)

    def _judge_source(self, step: int) -> None:
        if self._effect is not None and self._effect() <= ROUNDING:
            raise DivergenceError(
                "the source is ignored: sources of other examples change no prediction; look at the settings of encoder"
                " and decoder and at the source column, or go on all the same with training.watch=false",
                step=step,
                fault="source_ignored",
            )

    def _judge_loss(self, step: int, *, is_decaying: bool) -> None:
        losses, before = np.array(self._losses), self._before
        mean, error = float(losses.mean()), float(losses.var() / len(losses))
        self._losses, self._before = [], (mean, error)
        if before is None or min(mean, before[0]) < STUCK * self._chance:
            return
        is_falling = before[0] - mean > FALLING * math.sqrt(before[1] + error)
        highest, last = self._rates
        if not is_falling and (not is_decaying or last <= DECAYED * highest):
            raise DivergenceError(
                f"the loss is stuck: {mean:.3f} over {WINDOW} steps and {before[0]:.3f} over those before, chance is"
                f" ln V = {self._chance:.3f}; try a learning rate ten times lower, then ten times higher, or go on all"
                " the same with training.watch=false",
                step=step,
                fault="loss_stuck",
            )


def source_effect(model: nn.Module, batch: Batch, *, device: torch.device) -> float:
    """Largest change of a logit when each row gets the source of the row before, over the largest logit.

    Parameters
    ----------
    model : nn.Module
        Keeps the decoder contract; run in evaluation mode, and put back as it was.
    batch : Batch
        Infinity where it has no two different sources.
    device : torch.device
        Where the model lies.
    """
    source, source_mask, inputs, labels = on_device(batch, device)
    others, other_mask = source.roll(1, 0), source_mask.roll(1, 0)
    if torch.equal(source, others):
        return math.inf
    was_training = model.training
    model.eval()
    try:
        own, swapped = _logits(model, source, source_mask, inputs), _logits(model, others, other_mask, inputs)
    finally:
        model.train(was_training)
    is_label = labels != PAD
    return float((own - swapped)[is_label].abs().max() / own[is_label].abs().max().clamp(min=1.0))


@torch.no_grad()
def _logits(model: nn.Module, source: Tensor, source_mask: Tensor, inputs: Tensor) -> Tensor:
    contract: SequenceModel = model  # type: ignore[assignment]
    memory = contract.encode(source, source_mask)
    return contract.decode(inputs, memory, contract.initial_state(memory, len(source))).logits  # (B, T, V)
