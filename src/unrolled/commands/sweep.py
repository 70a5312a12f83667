"""`unrolled sweep`: many trainings, one table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unrolled.commands.reporting import note

if TYPE_CHECKING:
    from unrolled.sweeps import Result, Trial


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="What is tried.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder of the runs; sweeps/NAME for NAME.toml otherwise."),
    ] = None,
    num_at_once: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="Trainings at the same time.")] = 1,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Print the commands; train nothing.")] = False,
) -> None:
    """Train with all settings and seeds that SWEEP.toml names; print means over seeds with intervals, best first.

    Ctrl-C saves; the same command goes on: finished runs are skipped, interrupted ones resumed.
    """
    from unrolled.sweeps import read_sweep, run_trials, summary, trials_of

    trials = trials_of(read_sweep(file))
    if is_dry:
        for trial in trials:
            print(shlex.join(["unrolled", "train", *trial.arguments]))
        return
    folder = out or Path("sweeps") / file.stem
    count = 0

    def tell(trial: Trial, result: Result) -> None:
        nonlocal count
        count += 1
        value = "no dev value" if result.value is None else f"{result.value:.4f}"
        note(f"run {count} · {trial} · {value} · {result.seconds:.0f} s · {result.end}")

    results = run_trials(trials, folder, num_at_once=num_at_once, on_result=tell)
    print("\n".join(summary(trials, results, folder)))
