"""Heat maps of weights between symbols: cells of exact sizes, with labels that fit them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.image import AxesImage

from unrolled.figures import labels
from unrolled.figures.labels import Label

__all__ = ["colour_bar", "heat_map", "inches", "label", "sides"]

COLOURS = "Blues"  # one hue, monotone in lightness: readable with any colour vision and in print
LARGEST_MAP = 18.0  # inches
SMALLEST_CELL, LABELLED_CELL, LARGEST_CELL = 0.03, 0.14, 0.4  # inches; below the second, several cells share a label


def sides(shape: tuple[int, ...]) -> tuple[float, float]:
    """Width and height in inches of the cells of a map (rows, columns): square, unless one axis is very long."""
    rows, columns = (float(np.clip(LARGEST_MAP / length, SMALLEST_CELL, LARGEST_CELL)) for length in shape)
    square = min(rows, columns)
    return max(square, min(columns, LABELLED_CELL)), max(square, min(rows, LABELLED_CELL))


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of axes."""
    box = axes.get_window_extent()
    return box.width / axes.figure.dpi, box.height / axes.figure.dpi


def heat_map(axes: Axes, weights: npt.NDArray[np.float64]) -> AxesImage:
    """Draw weights (T, S) from 0 to 1, always on the same scale; square roots, so that small ones show."""
    axes.xaxis.tick_top()
    norm = PowerNorm(0.5, vmin=0.0, vmax=1.0)
    return axes.imshow(weights, cmap=COLOURS, norm=norm, aspect="auto", interpolation="none")


def label(axes: Axes, rows: Sequence[Label], columns: Sequence[Label]) -> None:
    """Label the rows and columns of a map; column labels wider than their cells stand upright."""
    width, height = inches(axes)
    column, row = width / len(columns), height / len(rows)
    size = float(np.clip(50 * min(column, row), 6.5, 11))  # points
    labels.put(axes.yaxis, rows, size=size, every=_every(row))
    every = _every(column)
    for text in labels.put(axes.xaxis, columns, size=size, every=every):
        if text.get_window_extent().width / axes.figure.dpi > every * column:
            text.set_rotation(90)
    axes.tick_params(length=2 if max(every, _every(row)) > 1 else 0)


def _every(cell: float) -> int:
    """Number of cells that share a label: 1, or the first round number that gives it room."""
    needed = LABELLED_CELL / cell
    return next((step for step in (1, 2, 5, 10, 20) if step >= needed - 1e-9), math.ceil(needed))


def colour_bar(axes: Axes, image: AxesImage) -> None:
    """Put the scale of the weights beside a map, at most 2.5 inches high."""
    width, height = inches(axes)
    bar = axes.inset_axes((1 + 0.15 / width, 0, 0.12 / width, min(1.0, 2.5 / height)))
    ticks = [0, 0.1, 0.5, 1] if height > 1 else [0, 1]
    scale = axes.figure.colorbar(image, cax=bar, ticks=ticks, format="{x:g}")
    scale.set_label("weight", fontsize=8)
    bar.tick_params(labelsize=8)
