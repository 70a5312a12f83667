"""Which symbols are taken for which others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unrolled.errors import ShapeError
from unrolled.figures import canvas, cells, labels
from unrolled.figures.shapes import Floats
from unrolled.metrics import Confusion

__all__ = ["symbol_confusion"]

CAPTION = (
    "How often the symbol of a row (expected) came out as the symbol of a column (got). {empty} in a row: an extra"
    " symbol; {empty} in a column: a missing one. Right symbols are not counted."
)


def symbol_confusion(confusions: Sequence[Confusion], *, limit: int = 40) -> Figure:
    """The most frequent confusions as a map: rows are expected symbols, columns are what came out instead.

    Parameters
    ----------
    confusions : sequence of Confusion
        As from `unrolled.metrics.confusions`; an empty symbol stands for an insertion or a deletion.
    limit : int
        Number of confusions shown, most frequent first.

    Raises
    ------
    ShapeError
        If there is none.

    Warns
    -----
    UserWarning
        Once, naming the characters that no font on this system has; their codes stand in for them.
    """
    shown = sorted(confusions, key=lambda confusion: -confusion.count)[:limit]
    if not shown:
        raise ShapeError("symbol confusion: nothing to draw, got no confusions; the predictions have no errors")
    expected, got = _by_frequency(shown, "expected"), _by_frequency(shown, "got")
    counts = np.zeros((len(expected), len(got)))
    for confusion in shown:
        counts[expected[confusion.expected], got[confusion.got]] += confusion.count
    rows, columns = labels.fit(*([labels.visible(symbol) for symbol in symbols] for symbols in (expected, got)))
    width, height = cells.sides(counts.shape)
    figure = canvas.fixed(len(got) * width, len(expected) * height)
    axes = figure.add_axes((0, 0, 1, 1))
    image = cells.heat_map(axes, counts, largest=counts.max())
    cells.label(axes, rows, columns)
    cells.colour_bar(axes, image, largest=counts.max(), name="count")
    axes.set(ylabel="expected", xlabel="got")
    axes.xaxis.set_label_position("top")
    if min(width, height) >= cells.LABELLED_CELL * 2:
        _write_counts(axes, counts)
    canvas.frame(figure, CAPTION.format(empty=labels.EMPTY))
    return figure


def _by_frequency(confusions: Sequence[Confusion], side: str) -> dict[str, int]:
    """Place of each symbol of one side, most often confused first."""
    totals: Counter[str] = Counter()
    for confusion in confusions:
        totals[getattr(confusion, side)] += confusion.count
    return {symbol: place for place, (symbol, _) in enumerate(totals.most_common())}


def _write_counts(axes: Axes, counts: Floats) -> None:
    for row, column in np.argwhere(counts):
        count = counts[row, column]
        colour = "white" if count > 0.4 * counts.max() else "black"
        axes.text(column, row, f"{count:.0f}", ha="center", va="center", fontsize=7, color=colour)
