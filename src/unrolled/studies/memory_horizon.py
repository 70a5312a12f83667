"""How far back recurrent nets learn to remember: the adding problem and copy memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from unrolled.figures import Panel, series
from unrolled.studies.learning import fit
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
HIDDEN, BATCH = 64, 32
ITEMS, SYMBOLS = 5, 8
SOLVED = 0.5
"""Of the baseline: the loss under which a net remembers."""
CAPTION = (
    "Last loss over that of the best answer without memory (1: nothing is remembered; adding problem 1/6, copy memory"
    " 5 ln 8 / (T + 10)). Where a curve reaches 1, the horizon of that cell ends, for so many steps of training."
)


class Net(nn.Module):
    """One recurrent layer and a linear head at every step; LSTM starts with forget bias 1."""

    def __init__(self, cell: str, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = CELLS[cell](inputs, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, outputs)
        if cell == "lstm":
            with torch.no_grad():
                for name, value in (("bias_ih_l0", 1.0), ("bias_hh_l0", 0.0)):
                    self.layer.get_parameter(name)[HIDDEN : 2 * HIDDEN] = value

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs (B, T, outputs)."""
        states, _ = self.layer(inputs)
        outputs: Tensor = self.head(states)
        return outputs


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Last loss over the baseline for each task, cell and length, and the longest length that is learnt."""
    seeds = range(pick(size, tiny=2, default=3, full=5))
    steps = pick(size, tiny=20, default=1200, full=6000)
    lengths = pick(size, tiny=[4], default=[5, 10, 20, 40, 60], full=[5, 10, 20, 40, 60, 100, 200])
    rows, panels, horizons = [], [], {}
    for task, one in (("adding problem", _adding), ("copy memory", _copy_memory)):
        curves = {}
        for cell in CELLS:
            values = []
            for length in lengths:
                tell(f"{task}, {cell}, {length} steps")
                values.append(Interval.of([one(cell, length, steps, seed) for seed in seeds]))
            curves[cell] = curve(lengths, values)
            learnt = [length for length, value in zip(lengths, values, strict=True) if value.mean < SOLVED]
            horizons[task, cell] = max(learnt, default=0)
            rows.append((task, cell, *values, horizons[task, cell]))
        panels.append(Panel(curves, "steps to remember over T", "last loss / baseline", title=task, log="x"))
    gated = [max(horizons[task, "lstm"], horizons[task, "gru"]) for task in ("adding problem", "copy memory")]
    plain = [horizons[task, "rnn"] for task in ("adding problem", "copy memory")]
    is_further = [more > less for more, less in zip(gated, plain, strict=True)]
    held = True if all(is_further) else None if any(is_further) else False
    verdict = (
        f"after {steps} steps of training a plain net remembers over {plain[0]} steps in the adding problem and"
        f" {plain[1]} in copy memory, gated nets over {gated[0]} and {gated[1]} (0: less than {lengths[0]})"
    )
    columns = ("task", "cell", *(f"T = {length}" for length in lengths), "horizon")
    return Result(columns, tuple(rows), series(panels, CAPTION), held, verdict)


def _net(cell: str, inputs: int, outputs: int, seed: int) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(cell, inputs, outputs)


def _adding(cell: str, length: int, steps: int, seed: int) -> float:
    """Mean squared error of the sum of two marked numbers, over 1/6."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        values = torch.rand(BATCH, length, generator=generator)
        first = torch.randint(length // 2, (BATCH,), generator=generator)
        second = torch.randint(length // 2, length, (BATCH,), generator=generator)
        marks = one_hot(first, length) + one_hot(second, length)
        return torch.stack([values, marks.float()], -1), (values * marks).sum(1)

    def loss(outputs: Tensor, sums: Tensor) -> Tensor:
        return mse_loss(outputs[:, -1, 0], sums)

    losses = fit(_net(cell, 2, 1, seed), draw, loss, steps=steps, seed=seed)
    return float(np.mean(losses[-3:])) * 6


def _copy_memory(cell: str, length: int, steps: int, seed: int) -> float:
    """Cross entropy over all T + 10 outputs, over 5 ln 8 / (T + 10)."""
    blank, go = SYMBOLS, SYMBOLS + 1

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        items = torch.randint(SYMBOLS, (BATCH, ITEMS), generator=generator)
        wait = partial(torch.full, fill_value=blank)
        ids = torch.cat([items, wait((BATCH, length - 1)), torch.full((BATCH, 1), go), wait((BATCH, ITEMS))], 1)
        labels = torch.cat([wait((BATCH, length + ITEMS)), items], 1)  # (B, T + 10)
        return one_hot(ids, SYMBOLS + 2).float(), labels

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs.flatten(0, 1), labels.flatten())

    losses = fit(_net(cell, SYMBOLS + 2, SYMBOLS + 1, seed), draw, loss, steps=steps, seed=seed)
    return float(np.mean(losses[-3:])) * (length + 2 * ITEMS) / (ITEMS * float(np.log(SYMBOLS)))


STUDY = Study(
    "memory-horizon",
    "A simple recurrent net learns to remember over 10 to 20 steps, gated nets over hundreds",
    "Hochreiter & Schmidhuber 1997; Arjovsky et al. 2016 for copy memory",
    measure,
)
