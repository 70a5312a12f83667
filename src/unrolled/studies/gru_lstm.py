"""GRU against LSTM: parameters, quality, and steps to equal loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from unrolled.config import RecurrentDecoder, RecurrentEncoder, ReverseTask, Seq2Seq
from unrolled.figures import Panel, series
from unrolled.parameters import Sizes, inventory
from unrolled.studies.learning import Learnt, learn
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

CAPTION = (
    "Dev loss while models of equal sizes learn to write strings backwards, without attention: one vector carries the"
    " whole string. Bands are 95 % intervals over seeds."
)


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Weights of the recurrent layers, last dev loss, and the step at which half of the first loss is gone."""
    seeds = range(pick(size, tiny=2, default=3, full=8))
    steps = pick(size, tiny=20, default=600, full=4000)
    task = ReverseTask(length=pick(size, tiny=3, default=6, full=12), dev_size=200)
    every = max(10, steps // 30)
    rows, curves, found = [], {}, {}
    for cell in ("lstm", "gru"):
        runs: list[Learnt] = []
        for seed in seeds:
            tell(f"{cell}, seed {seed}")
            runs.append(learn(task, _model(cell, size), steps=steps, seed=seed, evaluate_every=every))
        losses = np.array([[loss for _, loss in run.dev_losses()] for run in runs])
        places = [step for step, _ in runs[0].dev_losses()]
        curves[cell] = curve(places, [Interval.of([*column]) for column in losses.T])
        halved = Interval.of([min(run.steps_to(0.5 * losses[0, 0]), float(steps)) for run in runs])
        found[cell] = _num_weights(_model(cell, size)), Interval.of([*losses[:, -1]]), halved
        rows.append((cell, *found[cell]))
    ratio = found["gru"][0] / found["lstm"][0]
    is_alike = found["gru"][1].low <= found["lstm"][1].high and found["lstm"][1].low <= found["gru"][1].high
    verdict = (
        f"a GRU has {ratio} of the LSTM's recurrent weights; last dev loss {found['gru'][1]} against"
        f" {found['lstm'][1]}, half of the loss gone after {found['gru'][2]} against {found['lstm'][2]} steps"
    )
    held = True if ratio == 0.75 and is_alike else None if ratio == 0.75 else False
    columns = ("cell", "recurrent weights", "last dev loss", "steps to half the loss")
    return Result(
        columns,
        tuple(rows),
        series([Panel(curves, "optimiser step", "dev loss (nats a label)")], CAPTION),
        held,
        verdict,
    )


def _model(cell: Literal["lstm", "gru"], size: Size) -> Seq2Seq:
    width = pick(size, tiny=8, default=96, full=128)
    return Seq2Seq(
        encoder=RecurrentEncoder(cell=cell, embedding_dim=32, hidden_size=width, is_bidirectional=False, dropout=0.0),
        decoder=RecurrentDecoder(cell=cell, embedding_dim=32, hidden_size=width, attention="none", dropout=0.0),
    )


def _num_weights(model: Seq2Seq) -> int:
    """Of the recurrent layers alone, biases included."""
    found = inventory(model, Sizes(12, 0, 12))
    return sum(int(np.prod(one.shape)) for one in found if ".layers." in one.name)


STUDY = Study(
    "gru-lstm",
    "A GRU does as well as an LSTM of equal size, with exactly three quarters of its recurrent parameters",
    "Cho et al. 2014; Jozefowicz et al. 2015",
    measure,
)
