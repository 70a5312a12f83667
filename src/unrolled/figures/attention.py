"""The attention picture: where the model looked while it wrote each symbol."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unrolled.errors import ShapeError
from unrolled.figures import canvas, cells, labels

__all__ = ["attention"]

BAR = "#d95f02"
STRIP = 0.7  # inches, height of the occlusion bars
TITLE_SIZE = 11.0  # points

Floats = npt.NDArray[np.float64]


def attention(
    weights: npt.ArrayLike,
    source_symbols: Sequence[str],
    target_symbols: Sequence[str],
    *,
    title: str | None = None,
    occlusion: npt.ArrayLike | None = None,
) -> Figure:
    """Attention weights of one output over its source.

    Parameters
    ----------
    weights : array (T, S)
        Row t: weights over the source while target symbol t was written; each row sums to 1.
    source_symbols, target_symbols : sequences of str
        The S and T symbols, in logical order also for right-to-left scripts.
    title : str, optional
        Shown literally above the picture.
    occlusion : array (S,), optional
        Drop of the output's log-probability, in nats, when each source symbol is hidden; drawn as a strip of bars.

    Returns
    -------
    Figure
        Colours have the fixed range 0 to 1 on a square-root scale, so that pictures compare
        and spread-out attention shows.

    Raises
    ------
    ShapeError
        If the weights do not fit the symbols, or there is nothing to draw.

    Warns
    -----
    UserWarning
        Once, naming the characters that no font on this system has; their codes stand in for them.
    """
    grid = _checked(weights, (len(target_symbols), len(source_symbols)), "attention weights", "(target, source)")
    strip = None if occlusion is None else _checked(occlusion, (len(source_symbols),), "occlusion", "(source,)")
    rows, columns, (heading,) = labels.fit(
        [labels.visible(symbol) for symbol in target_symbols],
        [labels.visible(symbol) for symbol in source_symbols],
        [title or ""],
    )
    width, height = cells.sides(grid.shape)
    figure = canvas.fixed(len(columns) * width, len(rows) * height)
    axes = figure.add_axes((0, 0, 1, 1))
    image = cells.heat_map(axes, grid)
    cells.label(axes, rows, columns)
    cells.colour_bar(axes, image)
    if strip is not None:
        _strip_below(axes, strip)
    if title:
        wrapped = canvas.wrap(heading.text, max(figure.get_figwidth(), canvas.NARROWEST), TITLE_SIZE)
        labels.write(axes.set_title("", fontsize=TITLE_SIZE, pad=10), heading._replace(text=wrapped))
    canvas.frame(figure, _caption(source_symbols, has_strip=strip is not None))
    return figure


def _checked(values: npt.ArrayLike, expected: tuple[int, ...], what: str, axes: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != expected:
        raise ShapeError(f"{what}: expected shape {axes} = {expected}, as many as the symbols, got {array.shape}")
    if not array.size:
        raise ShapeError(f"{what}: nothing to draw, shape {axes} = {expected}; give at least one symbol a side")
    return array


def _strip_below(axes: Axes, drops: Floats) -> None:
    height = cells.inches(axes)[1]
    strip = axes.inset_axes((0, -(STRIP + 0.15) / height, 1, STRIP / height), sharex=axes)
    strip.bar(range(len(drops)), drops, width=0.8, color=BAR)
    strip.axhline(0, color="0.3", linewidth=0.6)
    strip.set_ylabel("nats", fontsize=8)
    strip.tick_params(axis="y", labelsize=7)
    strip.tick_params(axis="x", length=0, labeltop=False, labelbottom=False)
    strip.spines[["top", "right", "bottom"]].set_visible(False)


def _caption(symbols: Sequence[str], *, has_strip: bool) -> str:
    parts = [
        "Each row: where the model looked while writing this symbol; rows sum to 1 (colours on a square-root scale)."
    ]
    if has_strip:
        parts.append(
            "Weights are not importances: see the strip, the drop in ln P of the output when a symbol is hidden."
        )
    else:
        parts.append("Weights are not importances: hide symbols to see what matters.")
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in "".join(symbols)):
        parts.append("Right-to-left text is in logical order: its first symbol is at the left.")
    return " ".join(parts)
