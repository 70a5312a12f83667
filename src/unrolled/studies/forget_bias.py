"""The start value of an LSTM's forget bias, on a task that needs a long memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from unrolled.figures import Panel, series
from unrolled.studies.learning import WINDOW, fit
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

SYMBOLS, HIDDEN, BATCH = 8, 32, 32
BIASES = (0.0, 1.0, 2.0)
LEARNT = 0.5
"""Of ln 8: the loss at which the first symbol is mostly remembered."""
CAPTION = (
    "Mean loss while an LSTM learns to name the first symbol of a sequence after its last one. The loss starts at ln 8;"
    " the effective forget bias decides how much of the first step is left at the last one before anything is learnt."
)


class Rememberer(nn.Module):
    """An LSTM that answers after its last step; its effective forget bias is set."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(SYMBOLS, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, SYMBOLS)
        with torch.no_grad():
            for name, value in (("bias_ih_l0", bias), ("bias_hh_l0", 0.0)):
                self.lstm.get_parameter(name)[HIDDEN : 2 * HIDDEN] = value  # gate order i f g o

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, 8) after ids (B, T)."""
        states, _ = self.lstm(one_hot(ids, SYMBOLS).float())
        logits: Tensor = self.head(states[:, -1])
        return logits


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Loss over the steps for each bias and seed, and the step at which the task is mostly learnt."""
    seeds = range(pick(size, tiny=2, default=3, full=8))
    length = pick(size, tiny=5, default=30, full=100)
    steps = pick(size, tiny=40, default=800, full=4000)
    rows, curves, learnt = [], {}, {}
    for bias in BIASES:
        tell(f"forget bias {bias:g}")
        found = np.array([_losses(bias, length, steps, seed) for seed in seeds])  # (seeds, windows)
        places = range(0, steps, WINDOW)
        curves[f"bias {bias:g}"] = curve(places, [Interval.of([*column]) for column in found.T])
        is_low = found <= LEARNT * np.log(SYMBOLS)
        first = np.where(is_low.any(1), is_low.argmax(1) * float(WINDOW), float(steps))
        learnt[bias] = Interval.of([*first])
        rows.append((bias, learnt[bias], Interval.of([*found[:, -1]]), f"{int(is_low.any(1).sum())} of {len(seeds)}"))
    panel = Panel(curves, "optimiser step", "loss (nats)", title=f"first of {length} symbols")
    helps = [learnt[bias].high < learnt[0.0].low for bias in (1.0, 2.0)]
    held = True if helps[0] else None if helps[1] else False
    verdict = (
        f"over {length} steps half of the loss is gone after {learnt[0.0]} steps with bias 0, {learnt[1.0]} with 1,"
        f" {learnt[2.0]} with 2 (runs that never got there count as {steps})"
    )
    columns = ("forget bias", f"steps to {LEARNT} ln {SYMBOLS}", "last loss", "learnt")
    return Result(columns, tuple(rows), series([panel], CAPTION), held, verdict)


def _losses(bias: float, length: int, steps: int, seed: int) -> list[float]:
    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(SYMBOLS, (BATCH, length), generator=generator)
        return ids, ids[:, 0]

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Rememberer(bias)
    return fit(model, draw, cross_entropy, steps=steps, seed=seed)


STUDY = Study(
    "forget-bias",
    "A forget bias of 1 lets an LSTM learn long memories that it does not learn, or learns late, with 0",
    "Gers et al. 2000; Jozefowicz et al. 2015",
    measure,
)
