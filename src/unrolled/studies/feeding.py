"""What the decoder is fed while it trains: teacher forcing, free running, scheduled sampling."""

from __future__ import annotations

from collections.abc import Callable

from unrolled.config import (
    FreeRunning,
    RecurrentDecoder,
    RecurrentEncoder,
    ReverseTask,
    ScheduledSampling,
    Seq2Seq,
    TeacherForcing,
)
from unrolled.config.feeding import Feeding
from unrolled.figures import Panel, series
from unrolled.studies.learning import learn
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

CAPTION = (
    "Share of wrong symbols by place in the output, when the model reads what it wrote itself (own) and when it reads"
    " the truth (true). The distance of the two is the exposure gap. Strings are written backwards from one vector."
)


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Exposure gap, symbol error rate and error rate of each way of feeding."""
    seeds = range(pick(size, tiny=2, default=5, full=8))
    steps = pick(size, tiny=20, default=600, full=5000)
    task = ReverseTask(length=pick(size, tiny=4, default=8, full=16), dev_size=500)
    feedings: dict[str, Feeding] = {
        "teacher forcing": TeacherForcing(),
        "scheduled sampling": ScheduledSampling(rate=1.0 / steps, floor=0.25),
        "free running": FreeRunning(draw="sample"),
    }
    rows, curves, gaps, errors = [], {}, {}, {}
    for name, feeding in feedings.items():
        own, true, found = [], [], []
        for seed in seeds:
            tell(f"{name}, seed {seed}")
            learnt = learn(task, _model(size), steps=steps, seed=seed, feeding=feeding)
            report = learnt.predictor.evaluate(f"task:{task.type}")
            assert report.exposure is not None
            own.append(report.exposure.own / report.exposure.num_labels)
            true.append(report.exposure.true / report.exposure.num_labels)
            found.append((report.exposure.gap, report.exposure.symbol_error_rate, report.error_rate.value))
        gaps[name], errors[name], wrong = (Interval.of([one[place] for one in found]) for place in range(3))
        rows.append((name, gaps[name], errors[name], wrong))
        for kind, rates in (("own", own), ("true", true)):
            places = range(1, 1 + min(map(len, rates)))
            values = [Interval.of([float(rate[place - 1]) for rate in rates]) for place in places]
            curves[f"{name}: {kind}"] = curve(places, values)
    is_smaller = gaps["scheduled sampling"].mean < gaps["teacher forcing"].mean
    is_better = errors["scheduled sampling"].high < errors["teacher forcing"].low
    held = True if is_smaller and is_better else None if is_smaller else False
    verdict = (
        f"the exposure gap is {gaps['teacher forcing']} with teacher forcing, {gaps['scheduled sampling']} with"
        f" scheduled sampling, {gaps['free running']} free running; symbol errors of free use are"
        f" {errors['teacher forcing']}, {errors['scheduled sampling']} and {errors['free running']}"
    )
    columns = ("fed", "exposure gap", "symbol error rate", "wrong strings")
    panel = Panel(curves, "place in the output", "share of wrong symbols")
    return Result(columns, tuple(rows), series([panel], CAPTION), held, verdict)


def _model(size: Size) -> Seq2Seq:
    width = pick(size, tiny=8, default=96, full=128)
    return Seq2Seq(
        encoder=RecurrentEncoder(cell="gru", embedding_dim=32, hidden_size=width, is_bidirectional=False, dropout=0.0),
        decoder=RecurrentDecoder(cell="gru", embedding_dim=32, hidden_size=width, attention="none", dropout=0.0),
    )


STUDY = Study(
    "feeding",
    "Scheduled sampling narrows the exposure gap of teacher forcing and makes fewer errors in use",
    "Bengio et al. 2015",
    measure,
)
