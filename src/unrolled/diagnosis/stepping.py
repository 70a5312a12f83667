"""Step by step against all at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.regions import ROUNDING, Everywhere, difference
from unrolled.diagnosis.trace import Call, Trace, first_suspect, record
from unrolled.diagnosis.untouched import untouched

__all__ = ["check_stepwise"]


def check_stepwise(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether one call on n tokens equals n calls on one token, and calls on chunks.

    A model without a state is run on prefixes instead: the logits of a prefix must be those of the whole.

    Returns
    -------
    list of Finding
        `stepwise_mismatch` with the first step that differs and the first module that does.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    with untouched(subject.module), subject.mode(), torch.no_grad():
        if subject.can_step and subject.step(batch.inputs[:, :1], None, batch)[1] is not None:
            whole = subject.step(batch.inputs, None, batch)[0]
            cuts = (range(1, batch.steps), [batch.steps // 2], [1, batch.steps // 2 + 1])
            runs = [(f"calls on {_sizes(cut, batch.steps)} tokens", _in_chunks(subject, batch, cut)) for cut in cuts]
        else:
            whole, runs = subject.logits(batch), []
            if whole.shape[1] == batch.steps:
                runs = [(f"a prefix of {n} tokens", _prefix(subject, batch, n)) for n in _lengths(batch.steps)]
        for what, logits in runs:
            found = _mismatch(subject, batch, whole, logits, what=what)
            if found is not None:
                return [found]
    return []


def _in_chunks(subject: Subject, batch: Batch, cuts: Any) -> Tensor:
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < batch.steps}), batch.steps]
    state, logits = None, []
    for start, stop in pairwise(edges):
        part, state = subject.step(batch.inputs[:, start:stop], state, batch)
        logits.append(part)
    return torch.cat(logits, 1)


def _prefix(subject: Subject, batch: Batch, length: int) -> Tensor:
    return subject.logits(batch.columns(0, length))


def _lengths(steps: int) -> list[int]:
    return sorted({n for n in (1, 2, steps // 2, steps - 1) if 0 < n < steps})


def _sizes(cuts: Any, steps: int) -> str:
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < steps}), steps]
    sizes = [stop - start for start, stop in pairwise(edges)]
    return "1" if set(sizes) == {1} else ", ".join(map(str, sizes))


def _mismatch(subject: Subject, batch: Batch, whole: Tensor, logits: Tensor, *, what: str) -> Finding | None:
    real = batch.real_inputs
    for step in range(logits.shape[1]):
        rows = real[:, step]
        size = difference(whole[rows, step], logits[rows, step])
        if size > ROUNDING:
            measured = f"{what} give other logits than one call on {batch.steps}: relative difference {size:.2g}"
            module = _first_different(subject, batch, step) if subject.can_step else None
            return finding("stepwise_mismatch", measured, where=Where(module, step))
    return None


def _first_different(subject: Subject, batch: Batch, step: int) -> str | None:
    """The first module whose output in its own step differs from that step of the whole, with equal inputs."""
    whole = record(subject, lambda: subject.step(batch.inputs, None, batch)[0])
    state = None
    for place in range(step):
        _, state = subject.step(batch.inputs[:, place : place + 1], state, batch)
    single = record(subject, lambda: subject.step(batch.inputs[:, step : step + 1], state, batch)[0])
    sliced = [_at_step(call, originals, step) for call, originals in _paired(whole, single)]
    suspect = first_suspect(Trace(sliced, whole.logits), single, Everywhere())
    return None if suspect is None else suspect.module or subject.name


def _paired(whole: Trace, single: Trace) -> list[tuple[Call, Call]]:
    originals = {call.key: call for call in whole.calls}
    return [(call, originals[call.key]) for call in single.calls if call.key in originals]


def _at_step(call: Call, whole: Call, step: int) -> Call:
    """One step of what a module saw and returned in the whole run; what has no time axis counts as equal."""

    def sliced(ones: list[Tensor], wholes: list[Tensor]) -> list[Tensor]:
        return [_slice(one, other, step) for one, other in zip(ones, wholes, strict=False)]

    return Call(call.module, call.index, sliced(call.inputs, whole.inputs), sliced(call.outputs, whole.outputs))


def _slice(one: Tensor, whole: Tensor, step: int) -> Tensor:
    axes = [axis for axis in range(min(one.dim(), whole.dim())) if one.shape[axis] != whole.shape[axis]]
    if one.dim() == whole.dim() and len(axes) == 1 and one.shape[axes[0]] == 1 and step < whole.shape[axes[0]]:
        return whole.narrow(axes[0], step, 1)
    return one
