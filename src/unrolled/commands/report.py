"""`unrolled report`: one page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unrolled.commands.streams import check_writable


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Pairs to look at; else held-out ones.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="RUN/report.html otherwise.")] = None,
) -> None:
    """Write one page about a run: findings, figures, worst items; it needs nothing but a browser."""
    from unrolled.commands.products import fast_products
    from unrolled.gallery import View
    from unrolled.gallery import report as write_report
    from unrolled.runs import write_atomic

    path = out or run / "report.html"
    if out is not None:
        check_writable(out)
    with fast_products("auto"):
        page = write_report(View(run, data))
    write_atomic(path, page.encode())
    print(path)
