"""Attention pictures: where the model looked while it wrote each symbol."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unrolled.figures import canvas, cells, labels
from unrolled.figures.shapes import Floats, array_of

__all__ = ["attention", "attention_heads"]

BAR = "#d95f02"
STRIP = 0.7  # inches, height of the occlusion bars
GAP = 0.12  # inches between the maps of two heads
ROWS_CAPTION = (
    "Each row: where the model looked while writing this symbol; rows sum to 1 (colours on a square-root scale)."
)
STRIP_CAPTION = "see the occlusion strip, the drop in ln P of the output when a symbol is hidden."
HEADS_CAPTION = (
    "Layers downwards, heads to the right (layer.head). Look for heads that follow the diagonal, that look at one"
    " neighbour, or that rest on one symbol. Rows sum to 1; weights are not importances."
)


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
    grid = array_of(weights, (len(target_symbols), len(source_symbols)), "attention weights", "(target, source)")
    strip = None if occlusion is None else array_of(occlusion, (len(source_symbols),), "occlusion", "(source,)")
    rows, columns, (heading,) = labels.fit(*_shown(target_symbols, source_symbols, title))
    width, height = cells.sides(grid.shape)
    figure = canvas.fixed(len(columns) * width, len(rows) * height)
    axes = figure.add_axes((0, 0, 1, 1))
    image = cells.heat_map(axes, grid)
    cells.label(axes, rows, columns)
    cells.colour_bar(axes, image)
    if strip is not None:
        _strip_below(axes, strip)
    canvas.frame(figure, _caption(source_symbols, has_strip=strip is not None), heading)
    return figure


def attention_heads(
    weights: npt.ArrayLike,
    source_symbols: Sequence[str],
    target_symbols: Sequence[str],
    *,
    title: str | None = None,
) -> Figure:
    """Attention weights of every head of every layer, layers downwards and heads to the right.

    Parameters
    ----------
    weights : array (L, N, T, S)
        Layer, head, target, source; each row over the source sums to 1.
    source_symbols, target_symbols : sequences of str
        The S and T symbols; the same symbols twice for self-attention.
    title : str, optional
        Shown literally above the picture.

    Raises
    ------
    ShapeError
        If the weights do not fit the symbols, or there is nothing to draw.

    Warns
    -----
    UserWarning
        Once, naming the characters that no font on this system has.
    """
    shape = (None, None, len(target_symbols), len(source_symbols))
    grid = array_of(weights, shape, "attention weights", "(layer, head, target, source)")
    rows, columns, (heading,) = labels.fit(*_shown(target_symbols, source_symbols, title))
    num_layers, num_heads = grid.shape[:2]
    width, height = cells.panel(grid.shape)
    figure = canvas.fixed(num_heads * (width + GAP) - GAP, num_layers * (height + GAP) - GAP)
    spacing = {"wspace": GAP / width, "hspace": GAP / height, "left": 0, "right": 1, "bottom": 0, "top": 1}
    panels = figure.subplots(num_layers, num_heads, squeeze=False, gridspec_kw=spacing)
    for (layer, head), axes in np.ndenumerate(panels):
        image = cells.heat_map(axes, grid[layer, head])
        cells.label(axes, rows if head == 0 else None, columns if layer == 0 else None)
        corner = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
        name = f"{layer + 1}.{head + 1}"
        axes.text(0.98, 0.98, name, transform=axes.transAxes, fontsize=7, ha="right", va="top", bbox=corner)
    cells.colour_bar(panels[-1, -1], image)
    canvas.frame(figure, HEADS_CAPTION, heading)
    return figure


def _shown(target_symbols: Sequence[str], source_symbols: Sequence[str], title: str | None) -> Iterator[list[str]]:
    """Visible forms of the row labels, the column labels and the title."""
    yield [labels.visible(symbol) for symbol in target_symbols]
    yield [labels.visible(symbol) for symbol in source_symbols]
    yield [labels.phrase(title or "")]


def _strip_below(axes: Axes, drops: Floats) -> None:
    height = cells.inches(axes)[1]
    strip = axes.inset_axes((0, -(STRIP + 0.15) / height, 1, STRIP / height), sharex=axes)
    strip.bar(range(len(drops)), drops, width=0.8, color=BAR)
    strip.axhline(0, color="0.3", linewidth=0.6)
    strip.set_ylabel("drop (nats)", fontsize=8)
    strip.tick_params(axis="y", labelsize=7)
    strip.tick_params(axis="x", length=0, labeltop=False, labelbottom=False)
    strip.spines[["top", "right", "bottom"]].set_visible(False)


def _caption(symbols: Sequence[str], *, has_strip: bool) -> str:
    check = STRIP_CAPTION if has_strip else "hide symbols to see what matters."
    is_right_to_left = any(unicodedata.bidirectional(character) in ("R", "AL") for character in "".join(symbols))
    order = " Right-to-left text is in logical order: its first symbol is at the left." if is_right_to_left else ""
    return f"{ROWS_CAPTION} Weights are not importances: {check}{order}"
