"""One fixed vector against attention, by length of the source."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unrolled.config import RecurrentDecoder, RecurrentEncoder, ReverseTask, Seq2Seq
from unrolled.figures import Panel, series
from unrolled.inference import Predictor
from unrolled.studies.learning import learn
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick
from unrolled.text.tasks import draw_pairs

__all__ = ["STUDY"]

BROKEN = 0.5
CAPTION = (
    "Share of strings that are written backwards with an error, by their length; grey: lengths seen in training. A rise"
    " inside the grey says that one vector cannot carry the string; a rise outside, that the model does not go on."
)


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Error rate by source length, for seeds of both models."""
    seeds = range(pick(size, tiny=2, default=4, full=5))
    steps = pick(size, tiny=20, default=1000, full=8000)
    longest = pick(size, tiny=4, default=16, full=30)
    lengths = pick(size, tiny=[2, 4, 6], default=[*range(2, 25, 2)], full=[*range(2, 46, 2)])
    curves, found = {}, {}
    for name, attention in (("fixed vector", "none"), ("attention", "general")):
        runs = []
        for seed in seeds:
            tell(f"{name}, seed {seed}")
            learnt = learn(ReverseTask(length=longest, dev_size=100), _model(attention, size), steps=steps, seed=seed)
            runs.append([_error_rate(learnt.predictor, length) for length in lengths])
        found[name] = [Interval.of([*column]) for column in np.array(runs).T]
        curves[name] = curve(lengths, found[name])
    rows = [(length, found["fixed vector"][place], found["attention"][place]) for place, length in enumerate(lengths)]
    breaks = {name: _first_broken(lengths, values) for name, values in found.items()}
    panel = Panel(curves, "source length (symbols)", "share of wrong strings", shaded=(1, longest))
    inside = [place for place, length in enumerate(lengths) if length <= longest]
    held = found["fixed vector"][inside[-1]].low > found["attention"][inside[-1]].high
    verdict = (
        f"trained on lengths up to {longest}, half of the strings are wrong from length {breaks['fixed vector']} on"
        f" with one vector and from {breaks['attention']} on with attention (None: never up to {lengths[-1]}); at"
        f" length {lengths[inside[-1]]} the error rates are {found['fixed vector'][inside[-1]]} and"
        f" {found['attention'][inside[-1]]}"
    )
    columns = ("length", "error rate, fixed vector", "error rate, attention")
    return Result(columns, tuple(rows), series([panel], CAPTION), held, verdict)


def _first_broken(lengths: list[int], values: list[Interval]) -> int | None:
    return next((length for length, value in zip(lengths, values, strict=True) if value.mean > BROKEN), None)


def _model(attention: str, size: Size) -> Seq2Seq:
    width = pick(size, tiny=8, default=128, full=256)
    cells = {"cell": "gru", "embedding_dim": 32, "dropout": 0.0}
    return Seq2Seq(
        encoder=RecurrentEncoder.model_validate({**cells, "hidden_size": width // 2}),
        decoder=RecurrentDecoder.model_validate({**cells, "hidden_size": width, "attention": attention}),
    )


def _error_rate(predictor: Predictor, length: int) -> float:
    """Of 200 strings of one length, drawn from another seed than any that was trained on."""
    task = ReverseTask(min_length=length, length=length)
    pairs = draw_pairs(task, np.arange(200), seed=10_000)
    outputs = predictor.predict(pairs.sources)
    return float(np.mean([out != target for out, target in zip(outputs, pairs.targets or [], strict=True)]))


STUDY = Study(
    "bottleneck",
    "One fixed vector breaks down on long sources, at 15 to 20 symbols; attention does not",
    "Cho et al. 2014; Bahdanau et al. 2014",
    measure,
)
