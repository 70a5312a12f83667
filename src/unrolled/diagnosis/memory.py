"""How far a recurrent layer remembers: products of Jacobians, measured against every bound that is quoted for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.cells import GATES, Weights, gates, step_jacobians
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.recurrence import Run, directions, opened
from unrolled.diagnosis.untouched import untouched

__all__ = [
    "ForgetGates", "JacobianNorms", "check_forget_bias", "check_memory", "forget_gates", "gate_values",
    "jacobian_norms",
]  # fmt: skip

FAINT = 0.01
"""A state is forgotten where the Jacobian's norm falls under this: a hundredth of a change gets through."""
SHORT = 4
"""A layer that forgets within so many steps is worse than any common start: PyTorch's untouched LSTM has f ≈ 0.5 and an
untouched tanh layer ρ ≈ 1/√3, which fall to 0.01 after 7 and 8 steps."""
GROWTH = 1e3
MOST_STEPS = 32


# --- numbers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JacobianNorms:
    """∂s_T/∂s_(T−d) of one direction of one layer for the longest example, d = 1, 2, …; s is h, or [h; c] for LSTM.

    Attributes
    ----------
    name, cell : str
    singular_values : ndarray (D, s)
        Of the product of d Jacobians, largest first.
    hidden_norm : ndarray (D,)
        ‖∂h_T/∂h_(T−d)‖₂, the h→h block.
    cell_block : ndarray (D,) or None
        LSTM: ‖c→c block of the product‖₂, all paths from an early cell to a late one.
    forget_product : ndarray (D,) or None
        LSTM: max over units of Π f, the direct path alone.
    bound : ndarray (D,) or None
        Plain cells: Π ‖D_j‖₂ · σ_max(W)^d, which `hidden_norm` never exceeds.
    eigenvalues, weight_singular_values : ndarray (H,)
        Of W_hh (of its candidate block g or n for gated cells).
    spectral_radius, sigma_max : float
        ρ and σ_max of the same.
    horizon : int
        Largest distance with a norm of at least 0.01, at most the distances measured.
    """

    name: str
    cell: str
    singular_values: NDArray[np.float64]
    hidden_norm: NDArray[np.float64]
    cell_block: NDArray[np.float64] | None
    forget_product: NDArray[np.float64] | None
    bound: NDArray[np.float64] | None
    eigenvalues: NDArray[np.complex128]
    weight_singular_values: NDArray[np.float64]
    horizon: int

    @property
    def spectral_radius(self) -> float:
        """ρ, the largest modulus of an eigenvalue."""
        return float(np.abs(self.eigenvalues).max())

    @property
    def sigma_max(self) -> float:
        """σ_max, the largest singular value."""
        return float(self.weight_singular_values.max())


@dataclass(frozen=True)
class ForgetGates:
    """The forget gate of one direction of one LSTM layer.

    Attributes
    ----------
    name : str
    bias : float
        Mean of the effective bias b_ih + b_hh; 1 is the usual start, 0 PyTorch's.
    values : ndarray (R, H)
        f at every real step of every example; empty without a batch.
    """

    name: str
    bias: float
    values: NDArray[np.float64]


def jacobian_norms(
    model: Any, batch: Any, *, adapter: Adapter | None = None, most_steps: int = MOST_STEPS
) -> list[JacobianNorms]:
    """Products of single-step Jacobians ``∂s_t/∂s_k = J_t ⋯ J_(k+1)`` of every recurrent direction of a model.

    Notes
    -----
    ‖∂h_t/∂h_k‖₂ ≤ Π ‖D_j‖₂ · σ_max(W)^(t−k) (Pascanu et al. 2013 with the largest singular value); ρ(W) decides alone
    only where every D_j = I.
    """
    return [_norms(run, most_steps) for run in _runs(model, batch, adapter)]


def forget_gates(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[ForgetGates]:
    """Forget gates of every LSTM direction on a batch, and the effective bias that they start from."""
    found = []
    for run in _runs(model, batch, adapter):
        weights = run.direction.weights
        if weights.cell == "lstm":
            values = gates_of(run)[1].cpu().double().numpy()  # (R, H)
            found.append(ForgetGates(run.direction.name, float(_effective(weights)[1].mean()), values))
    return found


def gate_values(model: Any, batch: Any, *, adapter: Adapter | None = None) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Every gate of every recurrent direction at all real steps, `(R, H)` each, by name of direction and gate."""
    return {
        run.direction.name: {
            name: values.cpu().double().numpy()
            for name, values in zip(GATES[run.direction.weights.cell], gates_of(run), strict=True)
        }
        for run in _runs(model, batch, adapter)
    }


def _runs(model: Any, batch: Any, adapter: Adapter | None) -> list[Run]:
    subject, batch = Subject(model, adapter), Batch.of(batch)
    with untouched(subject.module), subject.mode(), torch.no_grad(), opened(subject) as runs:
        subject.logits(batch)
    return runs


def gates_of(run: Run) -> list[Tensor]:
    """Gate values at all real steps, (R, H) each."""
    weights, H = run.direction.weights, run.direction.weights.hidden_size
    before = torch.stack([run.start, *run.states[:-1]], 1)[..., :H]  # (B, T, H)
    real = torch.arange(len(run.states)) < run.lengths[:, None]
    inputs = torch.stack(run.inputs, 1)
    return [gate.detach()[real.to(gate.device)] for gate in gates(weights, inputs, before)]


def _jacobians(run: Run, most_steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The last Jacobians of the longest example (D, s, s), its inputs and its states (1 + D, s)."""
    row = int(run.lengths.argmax())
    stop = int(run.lengths[row])
    start = max(0, stop - most_steps)
    inputs = torch.stack(run.inputs, 1)[row, start:stop].detach()
    states = torch.stack([run.start, *run.states], 1)[row, start : stop + 1].detach()
    with torch.no_grad():
        return step_jacobians(run.direction.weights, inputs, states[:-1]).detach(), inputs, states


def _norms(run: Run, most_steps: int) -> JacobianNorms:
    weights = run.direction.weights
    jacobians, inputs, states = _jacobians(run, most_steps)
    H = weights.hidden_size
    products = _products(jacobians.double())
    values = torch.linalg.svdvals(products).cpu().numpy()
    forget = bound = cell = None
    if weights.is_lstm:
        cell = torch.linalg.matrix_norm(products[:, H:, H:], 2).cpu().numpy()
    if weights.cell == "lstm":
        f = gates(weights, inputs, states[:-1, :H])[1].detach().double().flip(0)
        forget = f.cumprod(0).amax(1).cpu().numpy()
    names = GATES[weights.cell]
    place = names.index("candidate") if "candidate" in names else 0
    square = weights.w_hh.detach().double()[place * H : (place + 1) * H]
    stretches = torch.linalg.svdvals(square).cpu().numpy()
    if weights.cell == "rnn":
        h = states[1:].double().flip(0)
        slopes = (h > 0).double() if weights.is_relu else 1 - h.square()
        bound = (slopes.amax(1) * float(stretches[0])).cumprod(0).cpu().numpy()
    hidden = torch.linalg.matrix_norm(products[:, :H, :H], 2).cpu().numpy()
    turns = torch.linalg.eigvals(square).cpu().numpy()
    kept = np.flatnonzero(values[:, 0] >= FAINT)
    horizon = int(kept[-1]) + 1 if len(kept) else 0
    name = run.direction.name
    return JacobianNorms(name, weights.cell, values, hidden, cell, forget, bound, turns, stretches, horizon)


def _products(jacobians: Tensor) -> Tensor:
    """J_T, J_T J_(T−1), …: ∂s_T/∂s_(T−d) for d = 1, 2, …, (D, s, s)."""
    products = [jacobians[-1]]
    for jacobian in jacobians[:-1].flip(0):
        products.append(products[-1] @ jacobian)
    return torch.stack(products)


# --- findings --------------------------------------------------------------------------------------------------------


def check_memory(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether recurrent layers pass changes of their state on, neither forgetting at once nor blowing them up.

    Returns
    -------
    list of Finding
        `vanishing_gradient_time`: no window of 4 steps lets a hundredth of a change through.
        `exploding_gradient_time`: some change grows a thousandfold within the example.
    """
    found: dict[str, Finding] = {}
    for run in _runs(model, batch, adapter):
        if len(run.states) <= SHORT or run.direction.name in found:
            continue
        one = _forgets(run) or _explodes(run)
        if one is not None:
            found[run.direction.name] = one
    return list(found.values())


def _forgets(run: Run) -> Finding | None:
    jacobians = _jacobians(run, 3 * SHORT)[0]
    if len(jacobians) < SHORT:
        return None
    windows = jacobians.unfold(0, SHORT, 1).movedim(-1, 1)  # (windows, SHORT, s, s)
    product = windows[:, -1]
    for place in range(SHORT - 2, -1, -1):
        product = product @ windows[:, place]
    norm = float(_largest_singular(product).max())
    if norm >= FAINT:
        return None
    measured = f"‖∂s_t/∂s_(t-{SHORT})‖₂ is at most {norm:.2g} ({run.direction.weights.cell})"
    return finding("vanishing_gradient_time", measured, where=Where(run.direction.name))


def _explodes(run: Run) -> Finding | None:
    products = _products(_jacobians(run, MOST_STEPS)[0])
    norms = _largest_singular(products)
    if not bool((norms > GROWTH).any()):
        return None
    distance = int((norms > GROWTH).nonzero()[0]) + 1
    measured = f"‖∂s_T/∂s_(T-{distance})‖₂ is {float(norms[distance - 1]):.2g}"
    return finding("exploding_gradient_time", measured, where=Where(run.direction.name, len(run.states) - 1 - distance))


def _largest_singular(matrices: Tensor, rounds: int = 30) -> Tensor:
    """σ_max of each matrix by power iteration; never above the true value."""
    scale = matrices.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30)
    scaled = matrices / scale
    vector = torch.ones_like(matrices[..., :1])
    for _ in range(rounds):
        vector = scaled.mT @ (scaled @ vector)
        vector = vector / vector.norm(dim=-2, keepdim=True).clamp(min=1e-30)
    norms: Tensor = (scaled @ vector).norm(dim=-2, keepdim=True) * scale
    return norms[..., 0, 0]


def check_forget_bias(model: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether the forget gate of LSTM layers starts open, as far as the weights tell.

    The effective bias is the sum of both bias vectors. Reported: a mean under −0.5 (the gate keeps less than 38 % a
    step); both vectors set to the same constant, so that it counts twice; a constant in another gate's quarter while
    the forget gate has none (gate order). PyTorch's own start, around 0, is not reported: see `forget_gates`.
    """
    found = []
    for direction in directions(Subject(model, adapter).module):
        measured = _bias_fault(direction.weights) if direction.weights.cell == "lstm" else None
        if measured is not None:
            found.append(finding("forget_bias", measured, where=Where(direction.name)))
    return found


def _effective(weights: Weights) -> Tensor:
    """(4, H) in the order i f g o."""
    return (weights.b_ih + weights.b_hh).detach().double().view(4, -1)


def _bias_fault(weights: Weights) -> str | None:
    mean = float(_effective(weights)[1].mean())
    gate = 1 / (1 + math.exp(-mean))
    halves = [bias.detach().double().view(4, -1)[1] for bias in (weights.b_ih, weights.b_hh)]
    if mean < -0.5:
        return f"effective bias {mean:.2f}: the gate starts at {gate:.2f}"
    if all(_is_constant(half) and float(half.mean()) > 0.5 for half in halves):
        one, other = (float(half.mean()) for half in halves)
        return f"set in both vectors: {one:.2f} + {other:.2f} = {mean:.2f}, the gate starts at {gate:.2f}"
    names = [name for place, name in enumerate("ifgo") if name != "f" and _is_set(weights, place)]
    if names and mean < 0.5:
        return f"gate {', '.join(names)} has it instead; effective bias of f {mean:.2f}, the gate starts at {gate:.2f}"
    is_zero = all(_is_constant(half) and not half.any() for half in halves)
    if is_zero and not _is_constant(_effective(weights)[0]):
        return f"set to 0 while the other gates' biases are not: the gate starts at {gate:.2f}"
    return None


def _is_constant(bias: Tensor) -> bool:
    return len(bias) > 1 and float(bias.max() - bias.min()) < 1e-6


def _is_set(weights: Weights, place: int) -> bool:
    """Whether a gate's bias was set by hand, as the forget bias is: one clearly positive constant in every unit."""
    halves = [bias.detach().view(4, -1)[place] for bias in (weights.b_ih, weights.b_hh)]
    return any(_is_constant(half) and float(half[0]) >= 0.5 for half in halves)
