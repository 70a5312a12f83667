"""Variance of attention scores and what is left of the softmax's gradient, against head_dim."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from unrolled.figures import Curve, Panel, series
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

KEYS, QUERIES = 32, 256
CAPTION = (
    "Queries and keys with independent entries of variance 1. Left: variance of the scores; dashed: what theory says."
    " Right: norm of the softmax's Jacobian diag(p) − p pᵀ, which every gradient to queries and keys passes through."
)


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Score variance and Jacobian norm with and without 1/√K, for head_dim K from 4 on."""
    seeds = pick(size, tiny=2, default=10, full=10)
    dims = pick(size, tiny=[4, 64], default=[2**n for n in range(2, 11)], full=[2**n for n in range(2, 14)])
    rows: list[tuple[object, ...]] = []
    found: dict[int, list[Interval]] = {}
    for head_dim in dims:
        tell(f"head_dim {head_dim}")
        values = np.array([_one(head_dim, seed) for seed in range(seeds)])  # (seeds, 4)
        found[head_dim] = [Interval.of([*column]) for column in values.T]
        rows.append((head_dim, *found[head_dim]))
    variance = _curves(found, first=0)
    variance["expected: K"] = Curve(dims, dims, is_expected=True)
    variance["expected: 1"] = Curve(dims, np.ones(len(dims)), is_expected=True)
    panels = [
        Panel(variance, "head_dim K", "variance of the scores", log="xy"),
        Panel(_curves(found, first=2), "head_dim K", "‖diag(p) − p pᵀ‖", log="x"),
    ]
    last = found[dims[-1]]
    is_predicted = all(
        abs(values[0].mean / K - 1) < 0.1 and abs(values[1].mean - 1) < 0.1 for K, values in found.items()
    )
    held = is_predicted and last[2].mean < 0.7 * last[3].mean
    verdict = (
        f"the variance is K within {max(abs(values[0].mean / K - 1) for K, values in found.items()):.1%}; at K ="
        f" {dims[-1]} the Jacobian has norm {last[2]} without the scale and {last[3]} with it"
    )
    columns = ("head_dim", "variance", "variance, scaled", "Jacobian norm", "Jacobian norm, scaled")
    return Result(columns, tuple(rows), series(panels, CAPTION), held, verdict)


def _one(head_dim: int, seed: int) -> tuple[float, float, float, float]:
    """Variance of the scores and mean norm of the softmax's Jacobian, without and with the scale."""
    generator = np.random.default_rng([seed, head_dim])
    scores = generator.standard_normal((QUERIES, head_dim)) @ generator.standard_normal((head_dim, KEYS))
    scaled = scores / np.sqrt(head_dim)
    return float(scores.var()), float(scaled.var()), _jacobian_norm(scores), _jacobian_norm(scaled)


def _jacobian_norm(scores: NDArray[np.float64]) -> float:
    """Mean Frobenius norm of diag(p) − p pᵀ over queries: its square is Σ p² − 2 Σ p³ + (Σ p²)²."""
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    squares, cubes = (p**2).sum(1), (p**3).sum(1)
    return float(np.sqrt(np.maximum(squares - 2 * cubes + squares**2, 0.0)).mean())


def _curves(found: dict[int, list[Interval]], *, first: int) -> dict[str, Curve]:
    return {
        name: curve([*found], [values[place] for values in found.values()])
        for place, name in enumerate(("not scaled", "scaled by 1/√K"), start=first)
    }


STUDY = Study(
    "softmax-scale",
    "Unscaled dot products have variance head_dim, so that the softmax saturates and passes hardly any gradient",
    "Vaswani et al. 2017, section 3.2.1 and its footnote 4",
    measure,
)
