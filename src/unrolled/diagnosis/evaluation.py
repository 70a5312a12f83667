"""Evaluation mode and finite values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.regions import SAME_SHAPE, Everywhere, difference
from unrolled.diagnosis.trace import Trace, hooked, record, responsible
from unrolled.diagnosis.untouched import untouched

__all__ = ["check_eval_mode", "check_finite"]


def check_eval_mode(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether evaluation mode is deterministic: the same batch under two seeds, and every submodule reached.

    Returns
    -------
    list of Finding
        `dropout_in_eval` with the first module whose output is random.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    with untouched(subject.module), subject.mode(), torch.no_grad():
        one, other = (subject.logits(batch, seed=seed).detach() for seed in (1, 2))
        size = difference(one, other)
        if size > SAME_SHAPE:
            names = responsible(subject, batch, batch, Everywhere(), part=lambda logits: logits, seeds=(1, 2))
            measured = f"two runs in evaluation mode differ by {size:.2g} (relative)"
            return [finding("dropout_in_eval", measured, where=Where(", ".join(names)))]
    return []


def check_finite(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether weights, values and gradients are finite, in evaluation and in training mode.

    Returns
    -------
    list of Finding
        `non_finite` with the first weight, or the first module and step.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    for name, weight in subject.parameters.items():
        if not weight.isfinite().all():
            return [
                finding("non_finite", f"{_count(weight)} of {weight.numel()} weights are not finite", where=Where(name))
            ]
    for training in (False, True):
        for find in (_forward, _backward):
            with untouched(subject.module), subject.mode(training=training):
                found = find(subject, batch)
            if found is not None:
                return [found]
    return []


def _forward(subject: Subject, batch: Batch) -> Finding | None:
    """NaN or +∞ anywhere that reaches the logits, or a loss that is not finite; −∞ alone may be a mask."""
    trace = record(subject, lambda: subject.logits(batch))
    is_wrong = bool((trace.logits.isnan() | trace.logits.isposinf()).any())
    if not is_wrong:
        loss = _loss(subject, batch, trace.logits)
        if loss is None or loss.isfinite():
            return None
    place = _first_bad(trace)
    name, step = ("", _step(trace.logits, batch)) if place is None else (place[0], _step(place[1], batch))
    bad = trace.logits if place is None else place[1]
    measured = f"{_count(bad)} of {bad.numel()} outputs are not finite"
    return finding("non_finite", measured, where=Where(name or subject.name, step))


def _first_bad(trace: Trace) -> tuple[str, Tensor] | None:
    """The first module with clean inputs and an output that is not; inner modules return before outer ones."""
    for is_good in (_has_no_nan, _is_finite):  # −∞ alone may be a mask, so it is the second choice
        for call in trace.calls:
            bad = [tensor for tensor in call.outputs if not is_good(tensor)]
            if bad and all(_is_finite(tensor) or _is_mask(tensor) for tensor in call.inputs):
                return call.module, bad[0]
    return None


def _backward(subject: Subject, batch: Batch) -> Finding | None:
    """The gradient of the loss, else of the sum of the logits, with respect to weights and module outputs."""
    outputs: list[tuple[str, Tensor]] = []

    def keep(name: str, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad and output.is_floating_point():
            outputs.append((name, output))

    with hooked(subject, keep):
        logits = subject.logits(batch)
    loss = _loss(subject, batch, logits)
    loss = logits.sum() if loss is None else loss
    weights = [(name, weight) for name, weight in subject.parameters.items() if weight.requires_grad]
    if not loss.requires_grad or not weights:
        return None
    targets = [tensor for _, tensor in outputs] + [weight for _, weight in weights]
    gradients = torch.autograd.grad(loss, targets, allow_unused=True)
    bad = [gradient is not None and not gradient.isfinite().all() for gradient in gradients]
    if not any(bad):
        return None
    # the last module output whose gradient is still finite comes right before the fault on the way back
    names = [name for (name, _), is_bad in zip(outputs, bad, strict=False) if is_bad]
    name = _after(names[-1], outputs, bad) if names else weights[bad[len(outputs) :].index(True)][0]
    first = gradients[bad.index(True)]
    assert first is not None
    return finding("non_finite", f"{sum(bad)} gradients are not finite", where=Where(name, _step(first, batch)))


def _after(name: str, outputs: list[tuple[str, Tensor]], bad: list[bool]) -> str:
    """The innermost module that returned after the last output with a bad gradient: the fault is inside it."""
    last = max(place for place, (own, _) in enumerate(outputs) if own == name and bad[place])
    return outputs[last + 1][0] if last + 1 < len(outputs) else name


def _loss(subject: Subject, batch: Batch, logits: Tensor) -> Tensor | None:
    if batch.labels is None or (subject.adapter.loss is None and logits.shape[:2] != batch.labels.shape):
        return None
    if subject.adapter.loss is None and not (batch.has_classes and (batch.labels != batch.ignored).any()):
        return None
    return subject.loss(batch, logits)


def _has_no_nan(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or not bool((tensor.isnan() | tensor.isposinf()).any())


def _is_mask(tensor: Tensor) -> bool:
    return bool(((tensor == 0) | tensor.isneginf()).all())


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def _count(tensor: Tensor) -> int:
    return int((~tensor.isfinite()).sum())


def _step(tensor: Tensor, batch: Batch) -> int | None:
    """The first step with a bad value, where the tensor has a time axis."""
    axis = next((axis for axis, size in enumerate(tensor.shape) if size == batch.steps and axis), None)
    if axis is None:
        return None
    bad = (~tensor.isfinite()).movedim(axis, 0).flatten(1).any(1)
    return int(bad.nonzero()[0]) if bad.any() else None
