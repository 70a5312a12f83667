"""What goes on inside a recurrent net: gates over time, and gradients through time and depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter

from unrolled.errors import ShapeError
from unrolled.figures import canvas, cells, labels
from unrolled.figures.shapes import Floats, array_of

__all__ = ["gates_over_time", "gradient_norms", "jacobian_spectrum"]

GATE_HEIGHT, GATE_GAP = 1.2, 0.35  # inches
OPEN, SHUT = 0.9, 0.1
GATES_CAPTION = (
    "One line a unit, sorted by its mean; dark is open. A forget gate that stays near 1 remembers, one near 0 forgets"
    f" at every symbol; units always above {OPEN} or below {SHUT} are saturated and hardly learn."
)
NORMS_CAPTION = (
    "Curves that fall to the left: the gradient vanishes on its way back to early times or blocks; curves that rise: it"
    " explodes. Zeros have no place on the log scale and leave gaps."
)
SPECTRUM_CAPTION = (
    "Left: eigenvalues of the recurrent matrix, the unit circle, and the largest singular value (dashed). Right: the"
    " true norm of the Jacobian product, its bound, and what ρ alone would say, true only of linear nets and far back."
)


def gates_over_time(gates: Mapping[str, npt.ArrayLike], symbols: Sequence[str]) -> Figure:
    """Activations of each gate of one layer while it read or wrote one sequence.

    Parameters
    ----------
    gates : mapping of name to array (T, H)
        Sigmoid gates, 0 to 1; time first, then units.
    symbols : sequence of str
        The T symbols.

    Raises
    ------
    ShapeError
        If the arrays do not fit the symbols, or there is nothing to draw.

    Warns
    -----
    UserWarning
        Once, naming the characters that no font on this system has; their codes stand in for them.
    """
    if not gates:
        raise ShapeError("gates: nothing to draw, got no gate; give at least one array (time, unit)")
    shape = (len(symbols), None)
    grids = [array_of(values, shape, f"gate {name}", "(time, unit)") for name, values in gates.items()]
    columns, names = labels.fit([labels.visible(symbol) for symbol in symbols], [labels.phrase(name) for name in gates])
    width = len(symbols) * cells.sides((1, len(symbols)))[0]
    figure = canvas.fixed(width, len(grids) * (GATE_HEIGHT + GATE_GAP) - GATE_GAP)
    spacing = {"hspace": GATE_GAP / GATE_HEIGHT, "left": 0, "right": 1, "bottom": 0, "top": 1}
    panels = figure.subplots(len(grids), 1, squeeze=False, gridspec_kw=spacing)[:, 0]
    for place, (axes, grid, gate) in enumerate(zip(panels, grids, names, strict=True)):
        image = cells.heat_map(axes, grid[:, np.argsort(-grid.mean(axis=0))].T, power=1.0)  # (H, T)
        cells.label(axes, None, columns if place == 0 else None)
        labels.write(axes.set_ylabel("", fontsize=9), gate)
        axes.set_xlabel(_saturation(grid), fontsize=8, color=canvas.FAINT)
    cells.colour_bar(panels[-1], image, name="activation")
    canvas.frame(figure, GATES_CAPTION)
    return figure


def _saturation(grid: Floats) -> str:
    opened, shut = (grid > OPEN).all(axis=0).mean(), (grid < SHUT).all(axis=0).mean()
    return f"{100 * opened:.0f} % of the units always open, {100 * shut:.0f} % always shut"


def gradient_norms(states: Mapping[str, npt.ArrayLike], depth: Mapping[str, npt.ArrayLike]) -> Figure:
    """Norms of the loss's gradient on its way back through time and through depth.

    Parameters
    ----------
    states : mapping of name to array (T,)
        ‖∂loss/∂state‖ at each time, one array a layer or direction; empty for nets without recurrence.
    depth : mapping of name to array (L,)
        ‖∂loss/∂output‖ of each block of a stack, first block first; empty for a single block.

    Raises
    ------
    ShapeError
        If an array has other axes, or both mappings are empty.

    Warns
    -----
    UserWarning
        Once, naming the characters of the names that no font on this system has.
    """
    shown = [(norms, axis) for norms, axis in ((states, "time"), (depth, "block")) if norms]
    if not shown:
        raise ShapeError("gradient norms: nothing to draw, got neither states nor depth; give at least one array")
    names = labels.fit(*([labels.phrase(name) for name in norms] for norms, _ in shown))
    figure = canvas.blank(4.4 * len(shown), 4.4)
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (norms, axis), legend in zip(panels, shown, names, strict=True):
        canvas.name(axes, _draw_norms(axes, norms, axis), legend)
    panels[0].set_ylabel("norm of the gradient")
    canvas.finish(figure, NORMS_CAPTION)
    return figure


def _draw_norms(axes: Axes, norms: Mapping[str, npt.ArrayLike], axis: str) -> list[Line2D]:
    _use_log_scale(axes)
    rows = [array_of(values, (None,), f"gradient norms {name}", f"({axis},)") for name, values in norms.items()]
    axes.set(xlabel=axis, xlim=(0.5, max(map(len, rows)) + 0.5))
    canvas.count_along(axes)
    return [
        axes.plot(np.arange(1, len(row) + 1), _positive(row), color=colour, marker=".")[0]
        for row, colour in zip(rows, canvas.shades(len(rows)), strict=True)
    ]


def _positive(values: npt.NDArray[np.floating]) -> Floats:
    return np.where(values > 0, values, np.nan).astype(np.float64)


def _use_log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))
    axes.tick_params(axis="y", which="minor", labelsize=7)


def jacobian_spectrum(
    eigenvalues: npt.ArrayLike,
    singular_values: npt.ArrayLike,
    *,
    product_norms: npt.ArrayLike,
    bounds: npt.ArrayLike | None = None,
) -> Figure:
    """Spectrum of a recurrent matrix beside what it does to gradients over time.

    Parameters
    ----------
    eigenvalues : complex array (H,)
        Of the recurrent matrix; the spectral radius ρ is the largest modulus.
    singular_values : array (H,)
        Of the same matrix.
    product_norms : array (n,)
        ‖∂h_t/∂h_{t−j}‖₂ for j = 1 … n.
    bounds : array (n,), optional
        Π ‖D‖₂ · σ_max^j for the same j (Pascanu et al. 2013, with the largest singular value); gated cells have none.

    Raises
    ------
    ShapeError
        If the sizes do not fit each other, or there is nothing to draw.
    """
    values = np.asarray(eigenvalues, dtype=np.complex128)
    radius = array_of(np.abs(values), (None,), "eigenvalues", "(unit,)").max()
    sigma = array_of(singular_values, values.shape, "singular values", "(unit,)").max()
    norms = array_of(product_norms, (None,), "product norms", "(distance,)")
    limits = None if bounds is None else array_of(bounds, norms.shape, "bounds", "(distance,)")
    figure = canvas.blank(9.0, 4.4)
    plane, growth = figure.subplots(1, 2)
    _draw_plane(plane, values, sigma)
    plane.set_title(f"ρ = {radius:.3g}, σ_max = {sigma:.3g}", fontsize=9)
    _draw_growth(growth, norms, limits, radius)
    canvas.finish(figure, SPECTRUM_CAPTION)
    return figure


def _draw_plane(axes: Axes, values: npt.NDArray[np.complex128], sigma: float) -> None:
    turn = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    axes.plot(turn.real, turn.imag, color="0.6", linewidth=0.8)
    axes.plot(sigma * turn.real, sigma * turn.imag, color=canvas.CATEGORIES[1], linewidth=0.8, linestyle="--")
    axes.plot(values.real, values.imag, ".", color=canvas.CATEGORIES[0])
    axes.set(aspect="equal", xlabel="real part", ylabel="imaginary part")


def _draw_growth(axes: Axes, norms: Floats, bounds: Floats | None, radius: float) -> None:
    distances = np.arange(1, len(norms) + 1)
    if bounds is not None:
        axes.plot(distances, _positive(bounds), color=canvas.CATEGORIES[1], linestyle="--", label="bound with σ_max")
    axes.plot(distances, _positive(norms), color=canvas.CATEGORIES[0], marker=".", label="true product")
    axes.plot(distances, _positive(radius**distances), color="0.6", label="ρ to the distance")
    _use_log_scale(axes)
    canvas.count_along(axes)
    axes.set(xlabel="distance in time", ylabel="norm of the Jacobian product")
    axes.legend(frameon=False, fontsize=8)
