"""`unrolled compare`: whether one system is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unrolled.commands.options import SourceOption, TargetOption, given_file
from unrolled.commands.reporting import note


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEST.tsv RUN_OR_PREDICTIONS...",
            help="Pairs with the right answers; then runs, or files of predictions.",
            show_default=False,
        ),
    ],
    source: SourceOption = None,
    target: TargetOption = None,
) -> None:
    """Compare systems on the same sources, with paired 95 % intervals; the first is the baseline.

    A file of predictions may come from any program: one a line, for each line of TEST.tsv or for each distinct source.
    With --source and --target there is no TEST.tsv.
    """
    from unrolled.commands.products import fast_products
    from unrolled.inference import compare as compare_systems

    pairs, systems = (files[0], files[1:]) if source is None and target is None else (None, files)
    with fast_products("auto"):
        contest = compare_systems(given_file(pairs, source, target), systems)
    for message in contest.reports[0].notes:
        note(message)
    print("\n".join(contest.lines()))
