"""Attention: weights that are a distribution over the keys, rightly scaled, rightly masked, and alive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unrolled.diagnosis.adapter import Adapter, Subject, chance_level
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.operations import Attention, observed
from unrolled.diagnosis.untouched import untouched

__all__ = ["AttentionNumbers", "attention_numbers", "attention_weights", "check_attention"]

SATURATED = 0.01
"""Mean of 1 − Σ p² below which a softmax passes hardly any gradient: its Jacobian diag(p) − p pᵀ has that trace, and at
0.01 the largest weight is 0.995 for the average query."""
HIDDEN = -9e3
"""Scores at or below this are a mask's fill (−∞, −1e9, a score plus −1e4): e^−9000 is 0 in every precision."""


@dataclass(frozen=True)
class AttentionNumbers:
    """What one attention did on one batch; arrays have one entry a head.

    Attributes
    ----------
    module : str
    head_dim : int or None
        Width K of queries and keys; none where the score is not a product.
    factor : float or None
        What q·k was multiplied by; 1/√K is right for Transformers.
    score_variance : float
        Variance over the keys that may be attended to; about Var(q) Var(k) with the right scale, K times that without.
    entropy : ndarray (N,)
        Mean over queries, nats.
    relative_entropy : ndarray (N,)
        Mean of entropy / ln(number of allowed keys): 1 uniform, 0 one key.
    jacobian_trace : ndarray (N,)
        Mean of 1 − Σ p²: what the softmax lets through; 0 = saturated.
    """

    module: str
    head_dim: int | None
    factor: float | None
    score_variance: float
    entropy: NDArray[np.float64]
    relative_entropy: NDArray[np.float64]
    jacobian_trace: NDArray[np.float64]


def attention_numbers(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[AttentionNumbers]:
    """Measure every attention of a model on a batch, in evaluation mode and in the order of the calls."""
    subject, batch = Subject(model, adapter), Batch.of(batch)
    return [_numbers(attention, batch) for attention in _attentions(subject, batch)]


def attention_weights(
    model: Any, batch: Any, *, adapter: Adapter | None = None
) -> list[tuple[str, NDArray[np.float64]]]:
    """Module and weights (N, T, S) of every attention of a model on one example, in the order of the calls."""
    subject, batch = Subject(model, adapter), Batch.of(batch)
    return [
        (attention.module, attention.weights.detach().reshape(-1, *attention.weights.shape[-2:]).cpu().double().numpy())
        for attention in _attentions(subject, batch)
    ]


def check_attention(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether attention weights sum to 1 over the keys, with the right scale, a sane mask, and a live softmax.

    Attention is found by what is computed, not by names: a softmax whose result is summed against values, or fused
    attention. A softmax that is written out with `exp` is not seen, nor one of scores that are no product and not over
    the length of the input: that of a mixture of experts is one.

    Returns
    -------
    list of Finding
        `attention_axis`, `attention_scale`, `attention_mask`, `attention_saturated`, each with its modules.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    attentions = _attentions(subject, batch)
    faults: dict[str, dict[str, str]] = {}  # name -> module -> measured
    for attention in attentions:
        for fault in (_axis(attention), _scale(attention, subject, batch), _mask(attention, batch)):
            if fault is not None:
                faults.setdefault(fault[0], {}).setdefault(attention.module or subject.name, fault[1])
    faults["attention_saturated"] = {} if _is_learnt(subject, batch) else _saturated(attentions, subject, batch)
    for name in ("attention_mask", "attention_saturated"):  # weights over the wrong axis say nothing about these
        wrong = faults.get("attention_axis", {})
        faults[name] = {module: what for module, what in faults.get(name, {}).items() if module not in wrong}
    return [
        finding(name, next(iter(places.values())), where=Where(", ".join(places)))
        for name, places in faults.items()
        if places
    ]


def _attentions(subject: Subject, batch: Batch) -> list[Attention]:
    with untouched(subject.module), subject.mode(), observed(subject) as operations:
        subject.logits(batch)
    lengths = [batch.steps] if batch.source is None else [batch.steps, batch.source.shape[1]]
    keys = {length + extra for length in lengths for extra in (0, 1)}  # one more: a sink, a first or last symbol
    return [one for one in operations.attentions if one.head_dim is not None or one.weights.shape[-1] in keys]


def _is_learnt(subject: Subject, batch: Batch) -> bool:
    """Sharp attention is no fault of a model that has learnt: loss under half of chance."""
    if not batch.has_classes:
        return False
    with untouched(subject.module), subject.mode(), torch.no_grad():
        logits = subject.logits(batch)
        return float(Subject(subject.model).loss(batch, logits)) < 0.5 * chance_level(logits)


# --- one attention at a time -----------------------------------------------------------------------------------------


def _axis(attention: Attention) -> tuple[str, str] | None:
    sums = attention.weights.double().sum(-1)
    sums = sums[sums.isfinite() & (sums.abs() > 1e-6)]  # rows without keys are another matter
    tolerance = max(1e-4, 4 * torch.finfo(attention.weights.dtype).eps)
    if sums.numel() == 0 or float((sums - 1).abs().max()) <= tolerance:
        return None
    return "attention_axis", f"the weights of a query sum to {float(sums.min()):.3g} … {float(sums.max()):.3g}, not 1"


def _scale(attention: Attention, subject: Subject, batch: Batch) -> tuple[str, str] | None:
    width, factor = attention.head_dim, attention.factor
    if width is None or factor is None or attention.is_normalised:
        return None
    right = 1 / math.sqrt(width)
    if math.isclose(factor, right, rel_tol=1e-3):
        return None
    if len(_by_head(attention.weights, batch.size)) == 1 and _goes_without(attention, subject.module, factor):
        return None
    variance = _variance(attention)
    known = "" if factor != 1.0 else " (no scale)"
    measured = f"scores are {factor:.4g} · q·k{known} with head_dim {width}, where 1/√{width} = {right:.4g}"
    return "attention_scale", f"{measured}; variance of the scores {variance:.3g}"


def _mask(attention: Attention, batch: Batch) -> tuple[str, str] | None:
    weights = attention.weights
    if weights.dim() < 2:
        return None
    empty = weights.sum(-1) == 0
    if attention.scores is not None:
        empty |= attention.scores.amax(-1) <= HIDDEN
    empty &= _real_queries(weights, batch)
    if empty.any():
        query = int(empty.flatten(0, -2).any(0).nonzero()[0]) if empty.dim() > 1 else int(empty.nonzero()[0])
        return "attention_mask", f"query {query} has no key to attend to"
    T, S = weights.shape[-2:]
    if T == S > 2:
        used = weights.flatten(0, -3).amax(0) > 0  # (T, S)
        if not used.diagonal().any() and used.tril(-1).any():
            return "attention_mask", "no query may attend to its own position: the mask's diagonal is lost"
    return None


def _real_queries(weights: Tensor, batch: Batch) -> Tensor:
    """Which queries belong to real tokens, in the shape of `weights.sum(-1)`; all where it cannot be told."""
    shape = weights.shape[:-1]
    for real in (batch.real_inputs, batch.real_source):
        if real is not None and weights.dim() > 2 and shape[-1] == real.shape[1] and shape[0] % len(real) == 0:
            heads = real.repeat_interleave(shape[0] // len(real), 0)  # (B, T) or (B·N, T)
            return heads.reshape(len(heads), *[1] * (len(shape) - 2), -1).expand(shape)
    return torch.ones(shape, dtype=torch.bool, device=weights.device)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _numbers(attention: Attention, batch: Batch) -> AttentionNumbers:
    weights = _by_head(attention.weights, batch.size).double().nan_to_num()  # (N, queries, S)
    scores = attention.scores
    allowed = (weights > 0 if scores is None else _by_head(scores, batch.size) > HIDDEN).sum(-1)
    entropy = torch.special.entr(weights).sum(-1)
    several = allowed > 1
    relative = torch.where(several, entropy / allowed.clamp(min=2).log(), torch.nan)
    trace = torch.where(several, 1 - weights.square().sum(-1), torch.nan)
    means = [part.nanmean(1).numpy() for part in (entropy.cpu(), relative.cpu(), trace.cpu())]
    return AttentionNumbers(attention.module, attention.head_dim, attention.factor, _variance(attention), *means)


def _saturated(attentions: list[Attention], subject: Subject, batch: Batch) -> dict[str, str]:
    """Modules all of whose heads are saturated for the average query, and how much."""
    traces: dict[str, list[float]] = {}
    for attention in attentions:
        trace = _numbers(attention, batch).jacobian_trace
        if np.isfinite(trace).all():
            traces.setdefault(attention.module or subject.name, []).append(float(trace.max()))
    means = {module: float(np.mean(values)) for module, values in traces.items()}
    return {
        module: f"1 − Σ p² is {mean:.2g} on average for the most open head"
        for module, mean in means.items()
        if mean < SATURATED
    }


def _variance(attention: Attention) -> float:
    scores = attention.scores
    if scores is None:
        return math.nan
    allowed = torch.where(scores > HIDDEN, scores.double(), torch.nan)
    deviation = allowed - allowed.nanmean(-1, keepdim=True)
    return float(deviation.square().nanmean())


def _by_head(weights: Tensor, rows: int) -> Tensor:
    """`(B, N, T, S)`, `(B·N, T, S)`, `(B, T, S)` or `(B, S)` as `(N, B·T, S)`."""
    S = weights.shape[-1]
    if weights.dim() < 3 or weights.shape[0] % rows:
        return weights.reshape(1, -1, S)
    parts = weights.reshape(rows, -1, *weights.shape[-2:])  # (B, N, T, S)
    return parts.transpose(0, 1).reshape(parts.shape[1], -1, S)


def _goes_without(attention: Attention, module: nn.Module | None, factor: float) -> bool:
    """Whether one head has no scale by design.

    That is so for `dot` and `general` in the steps of a recurrent decoder, and for queries that a convolution and an
    embedding make together, their sum times √½ (Gehring et al. 2017).
    """
    parts = [] if module is None else list(module.modules())
    is_step = attention.weights.dim() < 3 or attention.weights.shape[-2] == 1
    is_recurrent = is_step or any(hasattr(part, name) for part in parts for name in ("weight_hh", "weight_hh_l0"))
    if is_recurrent and math.isclose(factor, 1.0, rel_tol=1e-6):
        return True
    is_convolved = any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in parts)
    return is_convolved and any(math.isclose(factor, usual, rel_tol=1e-4) for usual in (1.0, math.sqrt(0.5)))
