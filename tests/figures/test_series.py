"""Curves of measurements."""

from __future__ import annotations

import numpy as np
import pytest

from unrolled.errors import ShapeError
from unrolled.figures import Curve, Panel, series


def test_panels_side_by_side_with_intervals_and_expectations():
    curves = {
        "measured $x$": Curve([1, 2, 4], [1.0, 2.0, 4.1], low=[0.9, 1.8, 4.0], high=[1.1, 2.2, 4.2]),
        "expected": Curve([1, 2, 4], [1, 2, 4], is_expected=True),
    }
    figure = series([Panel(curves, "length", "time", log="xy"), Panel(curves, "length", "time", shaded=(1, 2))], "what")
    left, right = figure.axes
    assert (left.get_xscale(), left.get_yscale(), right.get_xscale()) == ("log", "log", "linear")
    measured, expected = left.lines
    np.testing.assert_allclose(measured.get_ydata(), [1.0, 2.0, 4.1])
    assert (measured.get_linestyle(), expected.get_linestyle()) == ("-", "--")
    assert len(left.collections) == 1  # the band of the one curve that has an interval
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["measured $x$", "expected"]
    assert len(right.patches) == 1


def test_values_that_are_not_finite_are_gaps():
    figure = series([Panel({"a": Curve([1, 2, 3], [1.0, np.inf, np.nan])}, "x", "y")], "caption")
    np.testing.assert_array_equal(np.isnan(figure.axes[0].lines[0].get_ydata()), [False, True, True])


@pytest.mark.parametrize(
    "panels",
    [[], [Panel({}, "x", "y")], [Panel({"a": Curve([1, 2], [1.0])}, "x", "y")]],
    ids=["no panel", "no curve", "lengths differ"],
)
def test_nothing_to_draw_is_an_error(panels):
    with pytest.raises(ShapeError):
        series(panels, "caption")
