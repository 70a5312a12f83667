"""Curves of a run: loss, dev metric and learning rate over the steps, and errors over the source length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from unrolled.errors import ShapeError
from unrolled.figures import canvas, labels
from unrolled.figures.shapes import Floats, array_of
from unrolled.metrics import Estimate

__all__ = ["length_curve", "training_curves"]

Record = Mapping[str, Any]
WINDOWS = 50  # of the smoothed loss, over all steps
TRAIN, DEV, BEST, SKIPPED = canvas.CATEGORIES[0], canvas.CATEGORIES[1], canvas.CATEGORIES[2], canvas.CATEGORIES[3]
TRAINING_CAPTION = (
    "Dev loss that rises while training loss falls is overfitting. Training loss includes dropout and label smoothing,"
    " dev loss does not; rings mark the best checkpoint."
)
LENGTH_CAPTION = "Bars: 95 % intervals, wide where sources are few; below, the number of sources of each length."
SEEN_CAPTION = (
    " Grey: source lengths seen in training. A rise inside it says that the model cannot carry long sources; a rise"
    " outside it, that it does not extrapolate."
)


class _Series(NamedTuple):
    steps: Floats
    values: Floats


def training_curves(records: Sequence[Record]) -> Figure:
    """Training loss, dev metric and learning rate over the optimiser steps.

    Parameters
    ----------
    records : sequence of mappings
        The events of `metrics.jsonl`, told apart by their keys: steps (`step`, `loss` in nats a label,
        `learning_rate`), dev evaluations (`step`, `loss`, `metric`, `value`, `is_best`) and skipped steps (`step`,
        `in_a_row`). Others are passed over; a loss of None is a gap.

    Raises
    ------
    ShapeError
        If no step is among the records.
    """
    steps = [record for record in records if "learning_rate" in record]
    evaluations = [record for record in records if "metric" in record]
    if not steps:
        raise ShapeError("training curves: expected records of steps (step, loss, learning_rate), got none")
    by_error = [record for record in evaluations if record["metric"] != "loss"]
    panels = ["loss", *(["error"] if by_error else []), "rate"]
    figure = canvas.blank(7.0, 1.0 + 1.9 * len(panels))
    axes = figure.subplot_mosaic([[panel] for panel in panels], sharex=True)
    _draw_loss(axes["loss"], _series(steps, "loss"), evaluations)
    if by_error:
        _draw_dev(axes["error"], _series(by_error, "value"), by_error)
        axes["error"].set_ylabel(by_error[0]["metric"].replace("_", " "))
        axes["error"].yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes["rate"].plot(*_series(steps, "learning_rate"), color=canvas.FAINT)
    axes["rate"].set(xlabel="optimiser step", ylabel="learning rate", ylim=(0, None))
    canvas.count_along(axes["rate"])
    _mark_skipped(axes["loss"], [record["step"] for record in records if "in_a_row" in record])
    for panel in figure.axes:
        if panel.get_legend_handles_labels()[1]:
            panel.legend(frameon=False, fontsize=8)
    canvas.finish(figure, TRAINING_CAPTION)
    return figure


def _series(records: Sequence[Record], key: str) -> _Series:
    values = [np.nan if record[key] is None else record[key] for record in records]
    return _Series(np.array([record["step"] for record in records], dtype=np.float64), np.array(values, np.float64))


def _draw_loss(axes: Axes, loss: _Series, evaluations: Sequence[Record]) -> None:
    width = len(loss.values) // WINDOWS
    if width > 1:
        axes.plot(*loss, color=TRAIN, alpha=0.25, linewidth=0.8)
        axes.plot(*_smooth(loss, width), color=TRAIN, label=f"training, mean of {width} steps")
    else:
        axes.plot(*loss, color=TRAIN, marker=".", label="training")
    if evaluations:
        _draw_dev(axes, _series(evaluations, "loss"), evaluations)
    axes.set_ylabel("loss (nats a label)")


def _smooth(series: _Series, width: int) -> _Series:
    """Means of windows of `width` values, over what is finite in each."""
    starts = np.arange(0, len(series.values), width)
    finite = np.isfinite(series.values)
    counts = np.add.reduceat(finite, starts, dtype=np.float64)
    sums = np.add.reduceat(np.where(finite, series.values, 0.0), starts)
    means = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    return _Series(series.steps[np.minimum(starts + width // 2, len(series.steps) - 1)], means)


def _draw_dev(axes: Axes, dev: _Series, evaluations: Sequence[Record]) -> None:
    axes.plot(*dev, color=DEV, marker=".", label="dev")
    best = [place for place, record in enumerate(evaluations) if record.get("is_best")]
    if best:
        axes.plot(dev.steps[best[-1]], dev.values[best[-1]], marker="o", markersize=9, fillstyle="none", color=BEST)


def _mark_skipped(axes: Axes, steps: Sequence[int]) -> None:
    if steps:
        across = axes.get_xaxis_transform()
        axes.plot(steps, [0.02] * len(steps), "|", color=SKIPPED, transform=across, label="skipped step")


def length_curve(
    lengths: npt.ArrayLike,
    systems: Mapping[str, Sequence[Estimate]],
    *,
    counts: npt.ArrayLike,
    training_lengths: npt.ArrayLike = (),
) -> Figure:
    """Error rate over the source length, one curve a system.

    Parameters
    ----------
    lengths : array (M,)
        Source lengths, or the middles of groups of lengths, rising.
    systems : mapping of name to M estimates
        Error rates with their 95 % intervals, e.g. of the same model with and without attention.
    counts : array (M,)
        Number of sources behind each estimate.
    training_lengths : array, optional
        Source lengths of the training data; their range is marked.

    Raises
    ------
    ShapeError
        If the sizes differ, or there is nothing to draw.
    """
    places = array_of(lengths, (None,), "lengths", "(length,)")
    sizes = array_of(counts, places.shape, "counts", "(length,)")
    figure = canvas.blank(7.0, 4.8)
    above, below = figure.subplots(2, sharex=True, gridspec_kw={"height_ratios": (4, 1)})
    seen = np.asarray(training_lengths)
    if seen.size:
        for axes in (above, below):
            axes.axvspan(seen.min() - 0.5, seen.max() + 0.5, color="0.92", zorder=0)
    space = float(min(np.diff(places), default=1.0))
    curves = [
        _draw_system(above, places + 0.08 * space * place, estimates, place)
        for place, estimates in enumerate(systems.values())
    ]
    below.bar(places, sizes, width=0.8 * space, color="0.6")
    above.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    above.set(ylabel="error rate", ylim=(0, None))
    below.set(ylabel="sources", xlabel="source length (symbols)")
    canvas.count_along(below)
    (names,) = labels.fit([labels.phrase(name) for name in systems])
    canvas.name(above, curves, names)
    canvas.finish(figure, LENGTH_CAPTION + (SEEN_CAPTION if seen.size else ""))
    return figure


def _draw_system(axes: Axes, places: Floats, estimates: Sequence[Estimate], place: int) -> Artist:
    triples = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    value, low, high = array_of(triples, (len(places), 3), "estimates", "(length, value and interval)").T
    spread = (np.maximum(value - low, 0.0), np.maximum(high - value, 0.0))
    turn, colour = divmod(place, len(canvas.CATEGORIES))
    bars = axes.errorbar(places, value, spread, color=canvas.CATEGORIES[colour], marker="o", markersize=4, capsize=2)
    bars.lines[0].set_linestyle(("-", "--", ":")[turn % 3])
    return bars.lines[0]
