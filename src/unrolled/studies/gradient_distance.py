"""Gradients against the distance in time, for each cell at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unrolled.diagnosis.cells import GATES, Cell, Weights, input_part, step, step_jacobians
from unrolled.figures import Curve, Panel, series
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

HIDDEN, INPUTS = 64, 16
FAR = 50
CAPTION = (
    "Left: norm of the Jacobian of a state with respect to the state so many steps before it (for LSTM: of both h and"
    " c), at the start of training. Right: a linear net with ρ = 0.7 that is not normal grows many times over before it"
    " decays; ρ says nothing about it, and the bound with the largest singular value is far off."
)


@dataclass(frozen=True)
class Start:
    """A cell with its way to start."""

    cell: Cell
    is_orthogonal: bool = False


STARTS = {
    "rnn": Start("rnn"),
    "rnn, orthogonal": Start("rnn", is_orthogonal=True),
    "lstm": Start("lstm"),
    "lstm without forget gate": Start("lstm_ungated"),
    "gru": Start("gru"),
}


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Norms of products of Jacobians, ρ and σ_max for each cell and seed; then an example where ρ misleads."""
    seeds = range(pick(size, tiny=2, default=5, full=10))
    steps = pick(size, tiny=12, default=60, full=100)
    far = min(FAR, steps)
    rows, curves = [], {}
    for name, start in STARTS.items():
        tell(name)
        found = [_measure(start, steps, seed) for seed in seeds]
        logs = [Interval.of([one.logs[place] for one in found]) for place in range(steps)]
        curves[name] = _powers(curve(range(1, steps + 1), logs))
        radius, sigma = Interval.of([one.radius for one in found]), Interval.of([one.sigma for one in found])
        rows.append((name, radius, sigma, logs[9], logs[far - 1]))
        if name == "rnn":
            bound = np.mean([one.bound_logs for one in found], 0)
            curves["rnn: bound"] = Curve(range(1, steps + 1), 10**bound, is_expected=True)
    grows, right = _misleading(steps)
    left = Panel(curves, "distance in time (steps)", "norm of ∂s_t / ∂s_(t−d)", log="y")
    columns = ("cell", "ρ", "σ_max", "log10 norm, 10 steps", f"log10 norm, {far} steps")
    norms = {row[0]: row[4].mean for row in rows}
    is_vanishing, is_kept = norms["rnn"] < -far / 20, norms["lstm"] > -1
    held = is_kept if is_vanishing and is_kept else None if is_vanishing else False
    return Result(columns, tuple(rows), series([left, right], CAPTION), held, _verdict(norms, far, grows))


def _verdict(norms: dict[str, float], far: int, grows: float) -> str:
    powers = {name: f"10^{value:.1f}" for name, value in norms.items()}
    return (
        f"over {far} steps the gradient of a plain net falls to {powers['rnn']}, with an orthogonal start to"
        f" {powers['rnn, orthogonal']}. The carousel of 1997 keeps it ({powers['lstm without forget gate']}); an LSTM"
        f" with forget gates (bias 1: f ≈ 0.73) falls to {powers['lstm']} and a GRU to {powers['gru']} before they have"
        f" learnt to keep their gates open. With ρ = 0.7 a matrix that is not normal grows {grows:.0f}-fold"
    )


@dataclass(frozen=True)
class Measured:
    """Of one cell and seed: log10 of ‖∂s_T/∂s_(T−d)‖₂ and of its bound for d = 1 … T, and ρ and σ_max of W_hh.

    The bound is Π ‖D_j‖₂ · σ_max^d; it holds for simple nets alone. Of gated cells W_hh is the candidate's.
    """

    logs: NDArray[np.float64]
    bound_logs: NDArray[np.float64]
    radius: float
    sigma: float


def _measure(start: Start, steps: int, seed: int) -> Measured:
    generator = torch.Generator().manual_seed(seed)
    weights = _weights(start, generator)
    inputs = input_part(weights, torch.randn(steps, INPUTS, generator=generator, dtype=torch.float64))
    states = [torch.zeros(weights.state_size, dtype=torch.float64)]
    for part in inputs:
        states.append(step(weights, part, states[-1]))
    product, norms = torch.eye(weights.state_size, dtype=torch.float64), []
    for jacobian in step_jacobians(weights, inputs, torch.stack(states[:-1])).flip(0):
        product = product @ jacobian
        norms.append(float(torch.linalg.matrix_norm(product, 2)))
    square = _square(weights)
    sigma = float(torch.linalg.matrix_norm(square, 2))
    slopes = (1 - torch.stack(states[1:]).square()).amax(1).flip(0)
    bounds = (slopes * sigma).cumprod(0)
    radius = float(torch.linalg.eigvals(square).abs().max())
    return Measured(np.log10(np.maximum(norms, 1e-30)), np.log10(bounds.numpy()), radius, sigma)


def _powers(logs: Curve) -> Curve:
    """Ten to the power of a curve and its interval."""
    y, low, high = (10 ** np.asarray(edge, dtype=np.float64) for edge in (logs.y, logs.low, logs.high))
    return Curve(logs.x, y, low, high)


def _weights(start: Start, generator: torch.Generator) -> Weights:
    """Uniform in ±1/√H, as PyTorch starts; forget bias 1; on request an orthogonal recurrent matrix."""
    gates = len(GATES[start.cell])

    def uniform(*shape: int) -> Tensor:
        values: Tensor = (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1) / HIDDEN**0.5
        return values

    w_hh = uniform(gates * HIDDEN, HIDDEN)
    if start.is_orthogonal:
        w_hh = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=generator, dtype=torch.float64))[0]
    b_ih = torch.zeros(gates * HIDDEN, dtype=torch.float64)
    if start.cell == "lstm":
        b_ih[HIDDEN : 2 * HIDDEN] = 1.0
    return Weights(start.cell, uniform(gates * HIDDEN, INPUTS), w_hh, b_ih, torch.zeros_like(b_ih))


def _square(weights: Weights) -> Tensor:
    names = GATES[weights.cell]
    place = names.index("candidate") if "candidate" in names else 0
    square: Tensor = weights.w_hh[place * HIDDEN : (place + 1) * HIDDEN]
    return square


def _misleading(steps: int) -> tuple[float, Panel]:
    """A linear net whose matrix has ρ = 0.7 and large entries above the diagonal: ‖Wⁿ‖ beside ρⁿ and σ_maxⁿ."""
    W = 0.7 * np.eye(4) + 1.2 * np.eye(4, k=1)
    sigma = float(np.linalg.norm(W, 2))
    distances = np.arange(1, steps + 1)
    norms = np.array([np.linalg.norm(np.linalg.matrix_power(W, int(n)), 2) for n in distances])
    curves = {
        "true norm": Curve(distances, norms),
        "ρ to the distance": Curve(distances, 0.7**distances, is_expected=True),
        "σ_max to the distance (bound)": Curve(distances[:12], sigma ** distances[:12], is_expected=True),
    }
    return float(norms.max()), Panel(curves, "distance in time (steps)", "norm of the product", log="y")


STUDY = Study(
    "gradient-distance",
    "Gradients of simple recurrent nets vanish exponentially with the distance in time; an LSTM keeps them",
    "Bengio et al. 1994; Pascanu et al. 2013; Hochreiter & Schmidhuber 1997",
    measure,
)
