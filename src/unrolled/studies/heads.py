"""One attention head against many of the same total width, and what single heads look at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from unrolled.config import ReverseTask, Seq2Seq, TransformerDecoder, TransformerEncoder
from unrolled.decoding import Engine
from unrolled.diagnosis import Batch, attention_weights
from unrolled.figures import Curve, Panel, series
from unrolled.models.engine import TorchEngine
from unrolled.studies.learning import Learnt, learn
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick
from unrolled.text import Examples, collate
from unrolled.text.tasks import draw_pairs

__all__ = ["STUDY"]

REACH = 4
"""Places to either side of the mirrored one that are shown."""
DIFFERENT = 0.2
"""Difference of weight on the mirrored place from which heads count as looking at different places."""
CAPTION = (
    "Left: dev loss of Transformers of equal size that write strings backwards, by number of heads. Right: where each"
    " head of the last cross-attention looks, relative to the place of the symbol that is to be written (0: right on"
    " it), for the most heads and the first seed."
)


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Dev loss and error rate for 1, 2, 4 and 8 heads, and how sharply heads look at the mirrored place."""
    seeds = range(pick(size, tiny=2, default=4, full=5))
    steps = pick(size, tiny=8, default=600, full=4000)
    task = ReverseTask(length=pick(size, tiny=4, default=12, full=20), dev_size=300)
    numbers = pick(size, tiny=[1, 2], default=[1, 2, 4, 8], full=[1, 2, 4, 8, 16])
    rows, losses, profiles = [], {}, np.zeros((1, 2 * REACH + 1))
    for heads in numbers:
        runs: list[Learnt] = []
        for seed in seeds:
            tell(f"heads: {heads}, seed {seed}")
            runs.append(learn(task, _model(heads, size), steps=steps, seed=seed, rate=1e-3))
        losses[heads] = Interval.of([run.dev_losses()[-1][1] for run in runs])
        wrong = Interval.of([run.predictor.evaluate(f"task:{task.type}").error_rate.value for run in runs])
        profiles = _profiles(runs[0], task)
        rows.append((heads, losses[heads], wrong, float(profiles[:, REACH].max()), float(profiles[:, REACH].min())))
    best, most = min(losses, key=lambda heads: losses[heads].mean), numbers[-1]
    sharpest, bluntest = profiles[:, REACH].max(), profiles[:, REACH].min()
    learns_more, differs = best > 1 and losses[best].high < losses[1].low, sharpest - bluntest > DIFFERENT
    held = True if learns_more and differs else None if learns_more or differs else False
    verdict = (
        f"dev loss {losses[1]} with one head, {losses[most]} with {most}; the least is with {best}; with {most} heads"
        f" the sharpest puts {sharpest:.0%} of its weight on the mirrored place, the bluntest {bluntest:.0%}"
    )
    offsets = np.arange(-REACH, REACH + 1)
    looks = {f"head {place}": Curve(offsets, profile) for place, profile in enumerate(profiles, start=1)}
    panels = [
        Panel({"dev loss": curve(numbers, [*losses.values()])}, "heads", "dev loss (nats a label)", log="x"),
        Panel(looks, "place looked at, from the mirrored one", "mean weight"),
    ]
    columns = ("heads", "dev loss", "wrong strings", "sharpest head", "bluntest head")
    return Result(columns, tuple(rows), series(panels, CAPTION), held, verdict)


def _model(heads: int, size: Size) -> Seq2Seq:
    width = pick(size, tiny=16, default=64, full=128)
    settings = {"d_model": width, "d_ff": 2 * width, "num_layers": 2, "num_heads": heads, "dropout": 0.0}
    return Seq2Seq(
        encoder=TransformerEncoder.model_validate(settings), decoder=TransformerDecoder.model_validate(settings)
    )


def _profiles(learnt: Learnt, task: ReverseTask) -> NDArray[np.float64]:
    """Mean weight of each head of the last cross-attention by place, from the mirrored one, (N, 2 · REACH + 1)."""
    codec, whole = learnt.predictor.codec, task.model_copy(update={"min_length": task.length})
    pairs = draw_pairs(whole, np.arange(20), seed=10_000)
    batch = collate(
        Examples(codec.encode_sources(pairs.sources), codec.encode_targets(pairs.targets or []), np.arange(20)),
        np.arange(20),
    )
    model, T = _torch_model(learnt.predictor.engine), task.length
    total = []
    for row in range(20):
        one = Batch.of(tuple(part[row : row + 1] for part in (batch.source, batch.inputs, batch.labels)))
        weights = next(found for module, found in reversed(attention_weights(model, one)) if module.endswith(".cross"))
        padded = np.pad(weights, ((0, 0), (0, 0), (REACH, REACH)))  # (N, T + 1, S + 2 REACH)
        total.append(
            np.mean([padded[:, step, T - 1 - step : T + 2 * REACH - step] for step in range(T)], axis=0)
        )  # (N, 2 REACH + 1)
    profiles: NDArray[np.float64] = np.mean(total, axis=0)
    return profiles


def _torch_model(engine: Engine) -> object:
    assert isinstance(engine, TorchEngine)
    return engine.model


STUDY = Study(
    "heads",
    "Several heads learn more than one head of the same total width, and look at different places",
    "Vaswani et al. 2017, table 3 (A)",
    measure,
)
