"""What a sweep came to: one line a setting, best first, and the command that repeats the best."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unrolled.runs import use_command
from unrolled.sweeps.plan import Trial
from unrolled.sweeps.running import Result

__all__ = ["half_width", "summary"]

T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % points of Student's t with 1, 2, … degrees of freedom."""
Z = statistics.NormalDist().inv_cdf(0.975)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean, ``t · s / √n``; infinite for one value."""
    freedom = len(values) - 1
    if freedom < 1:
        return math.inf
    series = Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)  # Fisher 1926
    t = T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else series
    return t * statistics.stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True)
class Row:
    """One setting: its trials, and what they came to."""

    trials: Sequence[Trial]
    results: Sequence[Result]

    @property
    def values(self) -> list[float]:
        return [result.value for result in self.results if result.value is not None]

    @property
    def rank(self) -> tuple[bool, float]:
        """Lower is better; settings that come to no value with some seed are last."""
        values = self.values
        return len(values) < len(self.results), statistics.fmean(values) if values else math.inf

    @property
    def best(self) -> Trial:
        return min(
            zip(self.results, self.trials, strict=True),
            key=lambda found: math.inf if found[0].value is None else found[0].value,
        )[1]

    def cells(self) -> list[str]:
        values, lost = self.values, len(self.results) - len(self.values)
        mean = f"{statistics.fmean(values):.4f}" if values else "-"
        width = f"± {half_width(values):.4f}" if len(values) > 1 else ""
        seconds = statistics.fmean(result.seconds for result in self.results)
        seeds = f"{len(values)}" + (f" (+{lost} without value)" if lost else "")
        changes = " ".join(str(self.trials[0]).split(" ")[:-2])
        return [mean, width, seeds, f"{seconds:.0f} s", changes]


def summary(trials: Sequence[Trial], results: Mapping[str, Result], folder: Path) -> list[str]:
    """Lines for people: the table, and the commands that repeat and use the best setting."""
    by_setting: dict[str, list[Trial]] = {}
    for trial in trials:
        by_setting.setdefault(trial.setting, []).append(trial)
    rows = [Row(of_one, [results[trial.name] for trial in of_one]) for of_one in by_setting.values()]
    rows.sort(key=lambda row: row.rank)
    best = rows[0].best
    metric = best.config.training.dev_metric.replace("_", " ")
    head = [f"dev {metric}", "95 %", "seeds", "time", "settings"]
    run = folder / "runs" / best.name
    return [
        f"{len(trials)} runs of {len(rows)} settings, best first; mean over seeds and its 95 % interval (Student's t)",
        *_aligned([head, *(row.cells() for row in rows)]),
        f"best: {run}; use it with: {use_command(run, best.config)}",
        f"again: {shlex.join(['unrolled', 'train', *best.arguments])}",
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
