"""`unrolled show`: one figure of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unrolled.commands.streams import check_writable


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", show_default=False)],
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="training, attention, heads, gates, gradients, jacobian, lengths or confusions.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Pairs to look at; else held-out ones.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--input", metavar="TEXT", help="The source to follow; else one of the pairs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help=".png or .svg; RUN/figures/FIGURE.png otherwise.")
    ] = None,
) -> None:
    """Draw a figure of a run, and print where it is."""
    from unrolled import figures
    from unrolled.gallery import View, draw

    if out is not None:
        check_writable(out)
    drawn = draw(figure, View(run, data, text))
    path = out or run / "figures" / f"{figure}.png"
    figures.save(drawn, path)
    print(path)
