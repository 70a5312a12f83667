"""The paper that every figure is drawn on: its size, caption, legend and colours, and saving."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unrolled.errors import ConfigError
from unrolled.figures import labels
from unrolled.figures.labels import Label
from unrolled.runs import write_atomic

__all__ = ["CATEGORIES", "blank", "count_along", "finish", "fixed", "frame", "name", "save", "shades", "wrap"]

DPI = 150
CAPTION_SIZE, HEADING_SIZE = 8.0, 11.0  # points
FAINT = "0.3"
NARROWEST = 4.5  # inches, so that captions stay readable
MARGIN = 0.1  # inches
FEW = 4  # names for which there is room among the curves
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart with any colour vision
FORMATS = {".png": "png", ".svg": "svg"}


def blank(width: float, height: float) -> Figure:
    """Empty figure of a size in inches whose parts share it; for curves, which may have any shape."""
    figure = fixed(width, height)
    figure.set_layout_engine("constrained")
    return figure


def fixed(width: float, height: float) -> Figure:
    """Empty figure for parts of exact sizes in inches; `frame` makes room around them."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)  # keeps what measures texts; the default canvas makes it anew for each
    return figure


def finish(figure: Figure, text: str) -> None:
    """Tidy the curves of a `blank` figure and put a caption below, wrapped to its width."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    wrapped = wrap(text, figure.get_figwidth() - 2 * MARGIN, CAPTION_SIZE)
    figure.supxlabel(wrapped, fontsize=CAPTION_SIZE, color=FAINT)


def count_along(axes: Axes) -> None:
    """Tick the x axis at whole numbers only: steps, lengths, layers."""
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True, min_n_ticks=1))


def name(axes: Axes, curves: Sequence[Artist], names: Sequence[Label]) -> None:
    """Add a legend with a person's own names, shown literally; a long one beside the axes, where it hides no curve."""
    aside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(names) > FEW else {}
    legend = axes.legend(curves, [str(place) for place in range(len(names))], frameon=False, fontsize=8, **aside)
    for text, label in zip(legend.get_texts(), names, strict=True):
        labels.write(text, label)


def frame(figure: Figure, text: str, heading: Label | None = None) -> None:
    """Grow a `fixed` figure around all that was drawn in or beside it; put a heading above and a caption below."""
    drawn = figure.get_tightbbox()  # inches, from the old corner
    inner = max(drawn.width, NARROWEST)
    lines, below = _lines(text, inner, CAPTION_SIZE)
    title, above = _lines(heading.text, inner, HEADING_SIZE) if heading and heading.text else ("", 0.0)
    width, height = inner + 2 * MARGIN, drawn.height + above + below + 2 * MARGIN
    _move(figure, (MARGIN + (inner - drawn.width) / 2 - drawn.x0, MARGIN + below - drawn.y0), (width, height))
    figure.text(0.5, MARGIN / height, lines, fontsize=CAPTION_SIZE, color=FAINT, ha="center", va="bottom")
    if heading and title:
        top = figure.text(0.5, 1 - MARGIN / height, "", fontsize=HEADING_SIZE, ha="center", va="top")
        labels.write(top, heading._replace(text=title))


def _lines(text: str, width: float, size: float) -> tuple[str, float]:
    """Wrapped text, and its height in inches with a gap."""
    wrapped = wrap(text, width, size)
    return wrapped, 1.3 * size / 72 * (1 + wrapped.count("\n")) + 0.12


def _move(figure: Figure, offset: tuple[float, float], size: tuple[float, float]) -> None:
    """Give a figure a new size, its axes keep theirs and move by an offset; all in inches."""
    old = figure.get_size_inches()
    for axes in figure.axes:
        x, y, width, height = axes.get_position().bounds
        corner = (x * old[0] + offset[0]) / size[0], (y * old[1] + offset[1]) / size[1]
        axes.set_position((*corner, width * old[0] / size[0], height * old[1] / size[1]))
    figure.set_size_inches(*size)


def shades(number: int) -> list[tuple[float, float, float, float]]:
    """Colours from dark to light for things that have an order, such as layers."""
    return [colormaps["viridis"](place) for place in np.linspace(0.0, 0.85, number)]


def wrap(text: str, width: float, size: float) -> str:
    """Break a text into lines of a width in inches at a font size in points."""
    average_letter = 0.53 * size / 72  # inches
    return textwrap.fill(text, max(int(width / average_letter), 10))


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file, which is replaced whole or not at all.

    Parameters
    ----------
    figure : Figure
        The figure.
    path : path
        Ends with `.png` or `.svg`, which chooses the format. Missing folders are made.

    Raises
    ------
    ConfigError
        If the name ends otherwise.
    """
    path = Path(path)
    file_format = FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise ConfigError(f"figure {path.name!r}: expected a name ending with .png or .svg, got {path.suffix!r}")
    picture = io.BytesIO()
    figure.savefig(picture, format=file_format, dpi=figure.dpi)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, picture.getvalue())
