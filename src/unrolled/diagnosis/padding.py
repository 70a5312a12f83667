"""Padding must not matter: neither its amount nor its content changes anything at real positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch, Side
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.regions import ROUNDING, SAME_SHAPE, RealPositions, difference
from unrolled.diagnosis.signature import takes_mask
from unrolled.diagnosis.trace import responsible
from unrolled.diagnosis.untouched import untouched

__all__ = ["check_padding", "padded_side"]


def check_padding(model: Any, batch: Any, *, adapter: Adapter | None = None) -> list[Finding]:
    """Whether padding changes anything: that of the source, or, without one, that of the inputs.

    Three padded columns are added; each short example is run alone without its padding; and, where the model is told
    which positions are real, padding is filled with other symbols. The logits (of inputs: at real positions) must stay.
    Inputs are looked at where their padding could matter: in a tagger (`is_causal=False`) and in a model with one
    output a sequence, padded on the right. A causal model sees no padding before it has read all that is real.

    Returns
    -------
    list of Finding
        `padding_leak` with the responsible module.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    with untouched(subject.module), subject.mode():
        side = padded_side(subject, batch)
        if side is None:
            return []
        for find in (_more_padding, _less_padding, _other_padding):
            found = find(subject, batch, side)
            if found is not None:
                return [found]
    return []


def padded_side(subject: Subject, batch: Batch) -> Side | None:
    """Whose padding to look at; none where no real position could see any."""
    if batch.source is not None:
        return "source"
    real = batch.real_inputs
    if real.all() or (real[:, 1:] > real[:, :-1]).any():  # padding on the left moves positions, and is meant to
        return None
    sees_all = not subject.adapter.is_causal or subject.logits(batch).shape[1] < batch.steps
    return "inputs" if sees_all else None


def _more_padding(subject: Subject, batch: Batch, side: Side) -> Finding | None:
    is_marked = batch.pad is not None or (batch.source_mask if side == "source" else batch.mask) is not None
    longer = batch.with_more_padding(side, 3)
    logits = _other_length(subject, longer) if is_marked else None
    if logits is None:
        return None
    part = _real_part(batch, side)
    size = difference(part(subject.logits(batch)), part(logits))
    what = f"3 more padded columns of the {side} change the logits by {size:.2g} (relative)"
    return _leak(subject, batch, longer, side=side, what=what) if size > ROUNDING else None


def _less_padding(subject: Subject, batch: Batch, side: Side) -> Finding | None:
    lengths, together = batch.real(side).sum(1), subject.logits(batch)
    shortest = lengths.argsort()[:2]
    for row in shortest[(lengths[shortest] < batch.real(side).shape[1]) & (lengths[shortest] > 0)]:
        alone = batch.rows(row[None])
        short = alone.trimmed(side)
        logits, part = _other_length(subject, short), _real_part(short, side)
        if logits is None:
            return None
        size = difference(part(together[row][None]), part(logits))
        if size > ROUNDING and difference(part(subject.logits(alone)), part(logits)) > ROUNDING:
            what = f"example {int(row)} without its padding gives other logits (relative change {size:.2g})"
            return _leak(subject, short, alone, side=side, what=what)
    return None


def _other_padding(subject: Subject, batch: Batch, side: Side) -> Finding | None:
    is_told = subject.has_contract or (subject.adapter.forward is None and takes_mask(subject.model, side))
    if not is_told or batch.real(side).all():
        return None
    other, part = batch.with_padding_altered(side), _real_part(batch, side)
    size = difference(part(subject.logits(batch)), part(subject.logits(other)))
    what = f"other symbols in the padding of the {side} change the logits by {size:.2g} (relative)"
    return _leak(subject, batch, other, side=side, what=what) if size > SAME_SHAPE else None


def _other_length(subject: Subject, batch: Batch) -> Tensor | None:
    """Logits of a longer or shorter batch; none of a model for one length only."""
    try:
        return subject.logits(batch)
    except (RuntimeError, ValueError, IndexError):
        return None


def _real_part(batch: Batch, side: Side) -> Callable[[Tensor], Tensor]:
    """What of the logits must stay: with one for each input, those at real ones."""
    real = batch.real_inputs

    def part(logits: Tensor) -> Tensor:
        is_by_step = side == "inputs" and logits.shape[1] >= batch.steps
        return logits[:, : batch.steps][real] if is_by_step else logits

    return part


def _leak(subject: Subject, before: Batch, after: Batch, *, side: Side, what: str) -> Finding:
    real = before.real(side)
    region = RealPositions(real, is_grown=real.shape != after.real(side).shape)
    names = responsible(subject, before, after, region, part=_real_part(before, side))
    return finding("padding_leak", what, where=Where(", ".join(names)))
