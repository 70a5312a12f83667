"""What goes on inside a recurrent net: gates over time, and gradients through time and depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    "Falling curves to the left: gradients vanish on the way back through time; rising ones: they explode. Right: the"
    " whole norm of each layer. Zeros have no place on the log scale and leave gaps."
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


def gradient_norms(norms: npt.ArrayLike) -> Figure:
    """Norms of the loss's gradient with respect to each layer's output at each time.

    Parameters
    ----------
    norms : array (L, T)
        ‖∂loss/∂h‖ of layer l at time t.

    Raises
    ------
    ShapeError
        If the array has other axes, or there is nothing to draw.
    """
    grid = array_of(norms, (None, None), "gradient norms", "(layer, time)")
    figure = canvas.blank(8.0, 4.0)
    time, depth = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (3, 1)})
    steps = np.arange(1, grid.shape[1] + 1)
    layers = np.arange(1, len(grid) + 1)
    whole = np.linalg.norm(grid, axis=1)
    for layer, row, total, colour in zip(layers, grid, whole, canvas.shades(len(grid)), strict=True):
        time.plot(steps, _positive(row), color=colour, marker=".", label=f"layer {layer}")
        depth.plot(layer, _positive(total), color=colour, marker="o", linestyle="none")
    _use_log_scale(time)
    time.set(xlabel="time", xlim=(0.5, len(steps) + 0.5), ylabel="‖∂loss/∂h‖")
    depth.set(xlabel="layer", xlim=(0.5, len(layers) + 0.5))
    time.legend(frameon=False, fontsize=8, ncols=1 + len(layers) // 7)
    canvas.count_along(time)
    canvas.count_along(depth)
    canvas.finish(figure, NORMS_CAPTION)
    return figure


def _positive(values: npt.NDArray[np.floating]) -> Floats:
    return np.where(values > 0, values, np.nan).astype(np.float64)


def _use_log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))
    axes.tick_params(axis="y", which="minor", labelsize=7)


def jacobian_spectrum(
    eigenvalues: npt.ArrayLike, singular_values: npt.ArrayLike, *, product_norms: npt.ArrayLike, bounds: npt.ArrayLike
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
    bounds : array (n,)
        Π ‖D‖₂ · σ_max^j for the same j (Pascanu et al. 2013, with the largest singular value).

    Raises
    ------
    ShapeError
        If the sizes do not fit each other, or there is nothing to draw.
    """
    values = np.asarray(eigenvalues, dtype=np.complex128)
    radius = array_of(np.abs(values), (None,), "eigenvalues", "(unit,)").max()
    sigma = array_of(singular_values, values.shape, "singular values", "(unit,)").max()
    norms = array_of(product_norms, (None,), "product norms", "(distance,)")
    limits = array_of(bounds, norms.shape, "bounds", "(distance,)")
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


def _draw_growth(axes: Axes, norms: Floats, bounds: Floats, radius: float) -> None:
    distances = np.arange(1, len(norms) + 1)
    axes.plot(distances, _positive(bounds), color=canvas.CATEGORIES[1], linestyle="--", label="bound with σ_max")
    axes.plot(distances, _positive(norms), color=canvas.CATEGORIES[0], marker=".", label="true product")
    axes.plot(distances, _positive(radius**distances), color="0.6", label="ρ to the distance")
    _use_log_scale(axes)
    canvas.count_along(axes)
    axes.set(xlabel="distance in time", ylabel="norm of the Jacobian product")
    axes.legend(frameon=False, fontsize=8)
