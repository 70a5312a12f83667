"""Curves of measurements: one or several panels, each with named curves and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from unrolled.errors import ShapeError
from unrolled.figures import canvas, labels
from unrolled.figures.shapes import array_of

__all__ = ["Curve", "Panel", "series"]

STYLES = ("-", "--", ":")


@dataclass(frozen=True)
class Curve:
    """Values over x, with intervals where `low` and `high` are given; all of shape (M,)."""

    x: npt.ArrayLike
    y: npt.ArrayLike
    low: npt.ArrayLike | None = None
    high: npt.ArrayLike | None = None
    is_expected: bool = False
    """Drawn dashed and without marks: what theory says rather than what was measured."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes
    ----------
    curves : mapping of name to Curve
    x, y : str
        What the axes show, with units.
    title : str
    log : str
        `x`, `y`, `xy` or nothing: axes with a logarithmic scale.
    shaded : pair of float, optional
        A range of x that is marked.
    """

    curves: Mapping[str, Curve]
    x: str
    y: str
    title: str = ""
    log: str = ""
    shaded: tuple[float, float] | None = field(default=None)


def series(panels: Sequence[Panel], caption: str) -> Figure:
    """Draw panels side by side, with a caption that says what to see.

    Raises
    ------
    ShapeError
        If there is nothing to draw, or the arrays of a curve do not fit each other.
    """
    if not panels or not all(panel.curves for panel in panels):
        raise ShapeError("series: nothing to draw, got no panel or one without curves")
    figure = canvas.blank(max(4.8 * len(panels), canvas.NARROWEST + 1.0), 4.4)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    canvas.finish(figure, caption)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, fontsize=9)
    if "x" in panel.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    if "y" in panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    if panel.shaded is not None:
        axes.axvspan(*panel.shaded, color="0.92", zorder=0)
    drawn = [_draw_curve(axes, curve, place) for place, curve in enumerate(panel.curves.values())]
    (names,) = labels.fit([labels.phrase(name) for name in panel.curves])
    canvas.name(axes, drawn, names)


def _draw_curve(axes: Axes, curve: Curve, place: int) -> Line2D:
    x = array_of(curve.x, (None,), "x of a curve", "(point,)")
    y = array_of(curve.y, x.shape, "y of a curve", "(point,)")
    turn, colour = divmod(place, len(canvas.CATEGORIES))
    shade = canvas.CATEGORIES[colour]
    style = "--" if curve.is_expected else STYLES[turn % len(STYLES)]
    if curve.low is not None and curve.high is not None:
        low, high = (array_of(edge, x.shape, "interval of a curve", "(point,)") for edge in (curve.low, curve.high))
        axes.fill_between(x, low, high, color=shade, alpha=0.15, linewidth=0)
    shown = np.where(np.isfinite(y), y, np.nan)
    mark = "" if curve.is_expected or len(x) > 40 else "."
    return axes.plot(x, shown, color=shade, linestyle=style, marker=mark)[0]
