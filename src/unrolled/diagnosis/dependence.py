"""What must not matter and sometimes does: later steps and other examples.

Each check changes something that must not matter and compares the logits; where a change is too small to see in
float32, exact gradients decide.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.probe import input_gradient_norms, input_gradients
from unrolled.diagnosis.regions import ROUNDING, SAME_SHAPE, EarlierSteps, OtherRows, difference
from unrolled.diagnosis.trace import responsible
from unrolled.diagnosis.untouched import untouched

__all__ = ["altered_at", "check_batch_independence", "check_causal", "reach"]

MOST_STEPS = 16
"""Longer batches are probed at this many steps, evenly spread, the first ones and the last always."""


# --- later steps -----------------------------------------------------------------------------------------------------


def check_causal(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether logits at step t depend on inputs after t.

    One input at a time is changed, in evaluation and in training mode (with equal random numbers), and the logits
    before it must stay. Then ∂logits_t/∂input_u must be exactly 0 for u > t, with respect to embedded inputs.

    Parameters
    ----------
    model : nn.Module or callable
    batch : Batch or anything that `Batch.of` takes
    adapter : Adapter, optional

    Returns
    -------
    list of Finding
        `future_leak` with the responsible module and the first step that sees ahead.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    with untouched(subject.module):
        for training in (False, True):
            with subject.mode(training=training):
                found = _leak(subject, batch, training=training)
            if found is not None or training or _mixes_in_training(subject.module):
                return [] if found is None else [found]
    return []


def reach(subject: Subject, batch: Batch) -> tuple[list[int], Tensor]:
    """Which logits each input reaches.

    Returns
    -------
    steps : list of int
        The inputs that were changed, one at a time.
    changes : Tensor
        `(len(steps), T)`: relative change of the logits at each step.
    """
    before = subject.logits(batch).detach()
    steps = _probed(batch.steps)
    changes = torch.zeros(len(steps), batch.steps)
    for row, step in enumerate(steps):
        after = subject.logits(altered_at(batch, step, step + 1)).detach()
        changes[row] = torch.tensor([difference(before[:, t], after[:, t]) for t in range(batch.steps)])
    return steps, changes


def _leak(subject: Subject, batch: Batch, *, training: bool) -> Finding | None:
    if subject.logits(batch).shape[1] != batch.steps:
        return None
    steps, changes = reach(subject, batch)
    later = torch.arange(batch.steps) < torch.tensor(steps)[:, None]  # (probed input u, output t): t < u
    leaks = later & (changes > SAME_SHAPE)
    if not leaks.any():
        return _gradient_leak(subject, batch)
    first = int(leaks.any(0).nonzero()[0])
    ahead = [u - first for u, leak in zip(steps, leaks[:, first], strict=True) if leak]
    cut = altered_at(batch, first + 1, batch.steps)
    names = responsible(
        subject, batch, cut, EarlierSteps(first, batch.steps, batch.size), part=lambda x: x[:, : first + 1]
    )
    size = float(changes[:, first][leaks[:, first]].max())
    mode = " in training mode" if training else ""
    measured = f"logits at step {first} depend on inputs {_ahead(ahead)} later{mode} (relative change {size:.2g})"
    return finding("future_leak", measured, where=Where(", ".join(names), first))


def _gradient_leak(subject: Subject, batch: Batch) -> Finding | None:
    """Leaks too small for float32 logits: ∂⟨r, logits_t⟩/∂input_u for u > t, relative to the largest of all u."""
    with input_gradients(batch) as (probed, probes):
        logits = subject.logits(probed)
    if not probes or not logits.requires_grad:
        return None
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    for step in _probed(batch.steps)[:-1]:
        sizes = input_gradient_norms((logits[:, step] * direction[:, step]).sum(), probes, batch.steps)
        share = float(sizes[step + 1 :].max() / sizes.max().clamp(min=1e-30))
        if share > _TRANSFORM_NOISE:
            measured = f"∂logits_{step}/∂input_u is not 0 for a later input u ({share:.2g} of the largest)"
            return finding("future_leak", measured, where=Where(None, step))
    return None


_TRANSFORM_NOISE = 1e-7  # convolutions by transform (Winograd) leave rounding where the sum is exactly 0


def altered_at(batch: Batch, start: int, stop: int) -> Batch:
    """Other tokens at steps `start` to `stop` of the inputs."""
    where = torch.zeros(batch.inputs.shape[:2], dtype=torch.bool, device=batch.inputs.device)
    where[:, start:stop] = True
    return batch.with_inputs_altered(where)


def _probed(steps: int) -> list[int]:
    """Steps to probe: all of a short batch, else the first few and an even spread up to the last."""
    if steps <= MOST_STEPS:
        return list(range(steps))
    spread = torch.linspace(4, steps - 1, MOST_STEPS - 4).long().tolist()
    return sorted({0, 1, 2, 3, *spread})


def _ahead(ahead: list[int]) -> str:
    return f"{ahead[0]}" if len(ahead) == 1 else f"{min(ahead)} to {max(ahead)}"


def _mixes_in_training(module: nn.Module | None) -> bool:
    """Batch normalisation mixes examples and steps in training mode, and is meant to."""
    parts = [] if module is None else module.modules()
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts)


# --- other examples --------------------------------------------------------------------------------------------------


def check_batch_independence(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether examples of one batch influence each other in evaluation mode.

    One example is changed and the others must stay; then the order of the examples must not matter, and an example
    alone must equal itself in the batch.

    Returns
    -------
    list of Finding
        `batch_leak` with the responsible module.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    with untouched(subject.module), subject.mode():
        batch = batch if batch.size > 1 else batch.rows(torch.zeros(3, dtype=torch.long))
        for row in sorted({0, batch.size // 2, batch.size - 1}):
            other = _with_row_altered(batch, row)
            others = torch.arange(batch.size) != row
            size = difference(subject.logits(batch)[others], subject.logits(other)[others])
            if size > SAME_SHAPE:
                region = OtherRows(row, batch.size)
                names = responsible(subject, batch, other, region, part=partial(_rows, others))

                what = f"changing example {row} changes the logits of other examples by {size:.2g} (relative)"
                return [finding("batch_leak", what, where=Where(", ".join(names), line=_line(batch, row)))]
        return _alone(subject, batch)


def _rows(others: Tensor, logits: Tensor) -> Tensor:
    return logits[others]


def _with_row_altered(batch: Batch, row: int) -> Batch:
    where = torch.zeros(batch.inputs.shape[:2], dtype=torch.bool)
    where[row] = True
    other = batch.with_inputs_altered(where)
    if batch.source is None:
        return other
    where = torch.zeros(batch.source.shape[:2], dtype=torch.bool)
    where[row] = True
    return other.with_source_altered(where)


def _alone(subject: Subject, batch: Batch) -> list[Finding]:
    together, last = subject.logits(batch), batch.size - 1
    order = torch.arange(batch.size).roll(1)
    size = difference(together[order], subject.logits(batch.rows(order)))
    if size > ROUNDING:
        what = f"the examples in another order give other logits (relative change {size:.2g})"
        return [finding("batch_leak", what)]
    try:
        alone = subject.logits(batch.rows(torch.tensor([last])))
    except (RuntimeError, ValueError, IndexError):  # a model for one batch size only
        return []
    size = difference(together[last:], alone)
    if size <= ROUNDING:
        return []
    what = f"example {last} alone gives other logits than in its batch (relative change {size:.2g})"
    return [finding("batch_leak", what, where=Where(None, line=_line(batch, last)))]


def _line(batch: Batch, row: int) -> int | None:
    return None if batch.lines is None else batch.lines[row]
