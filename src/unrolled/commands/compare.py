"""`unrolled compare`: whether one system is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unrolled.commands.reporting import note


def compare(
    test: Annotated[Path, typer.Argument(metavar="TEST.tsv", help="Pairs with the right answers.", show_default=False)],
    systems: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_PREDICTIONS...", help="Runs, or files of predictions.", show_default=False),
    ],
) -> None:
    """Compare systems on the same sources, with paired 95 % intervals; the first is the baseline.

    A file of predictions may come from any program: one a line, for each line of TEST.tsv or for each distinct source.
    """
    from unrolled.inference import compare as compare_systems

    contest = compare_systems(test, systems)
    for message in contest.reports[0].notes:
        note(message)
    print("\n".join(contest.lines()))
