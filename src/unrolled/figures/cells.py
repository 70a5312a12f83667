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

__all__ = ["colour_bar", "heat_map", "inches", "label", "panel", "sides"]

COLOURS = "Blues"  # one hue, monotone in lightness: readable with any colour vision and in print
LARGEST_MAP = 14.0  # inches
SMALLEST_CELL, LABELLED_CELL, LARGEST_CELL = 0.03, 0.14, 0.4  # inches; below the second, several cells share a label
SMALLEST_PANEL = 0.8  # inches


def sides(shape: tuple[int, ...]) -> tuple[float, float]:
    """Width and height in inches of the cells of a map (rows, columns): square, unless one axis is very long."""
    rows, columns = (float(np.clip(LARGEST_MAP / length, SMALLEST_CELL, LARGEST_CELL)) for length in shape)
    square = min(rows, columns)
    return max(square, min(columns, LABELLED_CELL)), max(square, min(rows, LABELLED_CELL))


def panel(shape: tuple[int, ...]) -> tuple[float, float]:
    """Width and height in inches of one of many maps (layer, head, row, column) that share a figure."""
    num_layers, num_heads, rows, columns = shape
    square = min(LARGEST_CELL / 2, LARGEST_MAP / (num_heads * columns), LARGEST_MAP / (num_layers * rows))
    return max(square * columns, SMALLEST_PANEL), max(square * rows, SMALLEST_PANEL)


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of axes."""
    box = axes.get_window_extent()
    return box.width / axes.figure.dpi, box.height / axes.figure.dpi


def heat_map(axes: Axes, values: npt.NDArray[np.float64], *, largest: float = 1.0, power: float = 0.5) -> AxesImage:
    """Draw values (rows, columns) from 0 to `largest`, by default on a square-root scale, so that small ones show."""
    axes.xaxis.tick_top()
    norm = PowerNorm(power, vmin=0.0, vmax=largest)
    return axes.imshow(values, cmap=COLOURS, norm=norm, aspect="auto", interpolation="none")


def label(axes: Axes, rows: Sequence[Label] | None, columns: Sequence[Label] | None) -> None:
    """Label the rows and columns of a map, or hide them; column labels wider than their cells stand upright."""
    extents = zip((axes.yaxis, axes.xaxis), (rows, columns), reversed(inches(axes)), strict=True)
    named = [(axis, texts, extent / len(texts)) for axis, texts, extent in extents if texts]
    size = float(np.clip(50 * min((cell for _, _, cell in named), default=1.0), 6.5, 10))  # points
    axes.set(xticks=[], yticks=[])
    for axis, texts, cell in named:
        every = _every(cell)
        axis.set_tick_params(length=0 if every == 1 else 2)
        for text in labels.put(axis, texts, size=size, every=every):
            is_wide = every > 1 or text.get_window_extent().width / axes.figure.dpi > 0.95 * cell
            text.set_rotation(90 if is_wide and axis is axes.xaxis else 0)


def _every(cell: float) -> int:
    """Number of cells that share a label: 1, or the first round number that gives it room."""
    needed = LABELLED_CELL / cell
    return next((step for step in (1, 2, 5, 10, 20) if step >= needed - 1e-9), math.ceil(needed))


def colour_bar(axes: Axes, image: AxesImage, *, largest: float = 1.0, name: str = "weight") -> None:
    """Put the scale of the values beside a map, at most 2.5 inches high."""
    width, height = inches(axes)
    bar = axes.inset_axes((1 + 0.15 / width, 0, 0.12 / width, min(1.0, 2.5 / height)))
    ticks = np.array([0, 0.25, 0.5, 1] if height > 1 else [0, 1]) * largest
    if largest > 1:  # counts
        ticks = np.unique(ticks.round())
    scale = axes.figure.colorbar(image, cax=bar, ticks=ticks, format="{x:g}")
    scale.set_label(name, fontsize=8)
    bar.tick_params(labelsize=8)
