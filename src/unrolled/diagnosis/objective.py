"""What the model is trained to do: the first loss, and what its labels are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_columns

from unrolled.diagnosis.adapter import Adapter, Loss, Subject, chance_level
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.dependence import altered_at, reach
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.untouched import jittered, reseed, untouched

__all__ = ["check_first_loss", "check_labels", "label_shift"]


PROBES = 8
"""Labels that are changed to see what a loss holds them against."""
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it modulo 1 are spread evenly and never in step with the rows of a batch."""
UNLIKELY = 6.0
"""Nats: labels that agree with inputs at one shift by chance once in e⁶ = 400 batches are taken for those inputs."""


# --- first loss ------------------------------------------------------------------------------------------------------


def check_first_loss(
    model: Any, batch: Any, *, adapter: Adapter | None = None, is_untrained: bool = True
) -> list[Finding]:
    """Whether the loss starts at chance, ln V nats per label.

    Confident logits of an untrained model are confidently wrong: a loss of ln V + 1 means that, on average, the right
    label gets e times less than its fair share. Under ln V − 1 an untrained model already knows the labels.

    Parameters
    ----------
    is_untrained : bool
        False where the model may have been trained: then only a loss above ln V + 1 is reported.
    """
    batch = Batch.of(batch)
    if not batch.has_classes:
        return []
    subject = Subject(model, replace(adapter or Adapter(), loss=None))
    with untouched(subject.module), subject.mode(), torch.no_grad():
        logits = subject.logits(batch)
        if logits.shape[:2] != batch.labels.shape:
            return []
        loss = float(subject.loss(batch, logits))
    if _are_probabilities(logits):
        return [finding("probabilities_not_logits", "the outputs are in 0 … 1 and sum to 1 at every step")]
    chance = chance_level(logits)
    is_low = is_untrained and loss < chance - 1
    if math.isnan(loss) or (loss <= chance + 1 and not is_low):
        return []
    spread = float(logits.float().std())
    level = f"ln V = ln {max(2, logits.shape[-1])} = {chance:.3f}"
    measured = f"loss {loss:.3f}, {level}; standard deviation of the logits {spread:.3g}"
    advice = "look for labels among the inputs (a future leak, labels shifted by 0)" if is_low else None
    return [finding("first_loss", measured, advice=advice)]


def _are_probabilities(logits: Tensor) -> bool:
    sums = logits.float().sum(-1)
    return logits.shape[-1] > 1 and bool((logits >= 0).all() and ((sums - 1).abs() < 1e-3).all())


# --- labels ----------------------------------------------------------------------------------------------------------


def check_labels(model: Any, batch: Any, *, adapter: Adapter | None = None, loss: Loss | None = None) -> list[Finding]:
    """Whether each label is the token after the newest one that the model has seen, and pads do not count.

    Labels are compared with the inputs at every shift; the newest input that a logit depends on is measured. The loss
    must not move when a column of padding is added, nor its gradient reach logits without a label. Which logits a loss
    holds a label against is measured by changing the label.

    Parameters
    ----------
    loss : callable, optional
        The training loss, `loss(logits, labels)`; none for the adapter's. Without either only the batch is checked.

    Returns
    -------
    list of Finding
        `labels_shifted`, `pads_counted`, `labels_uncounted`, `logits_not_normalised`.
    """
    batch = Batch.of(batch)
    if not batch.has_classes or batch.inputs.is_floating_point() or (batch.labels == batch.ignored).all():
        return []
    subject = Subject(model, adapter if loss is None else replace(adapter or Adapter(), loss=loss))
    with untouched(subject.module), subject.mode():
        assert batch.labels is not None
        if subject.logits(batch).shape[:2] != batch.labels.shape:
            return []
        if batch.is_of_sequences:
            return [] if subject.adapter.loss is None else _normalised(subject, batch)
        if subject.adapter.loss is None:
            return _shifted(subject, batch, 0) + _counted(subject, batch)
        charged = _Charged.of(subject, batch)
        return [
            *(_mixed(charged) if charged.is_mixed else _shifted(subject, batch, charged.offset)),
            *_counted(subject, batch),
            *_uncounted(charged, batch),
            *_normalised(subject, batch),
        ]


def _shifted(subject: Subject, batch: Batch, offset: int) -> list[Finding]:
    """Whether label t belongs at logits t + `offset`, where the loss holds it against them."""
    shift = label_shift(batch)
    if shift is None:
        return []
    shift -= offset
    newest = _newest_seen(subject, batch)
    if newest is None or shift - newest == 1:
        return []
    copied = " (the model can copy its input)" if shift - newest == 0 else ""
    seen = "t" if newest == 0 else f"t{newest:+d}"
    by_loss = f", counting the {abs(offset)} by which the loss shifts them" if offset else ""
    measured = f"label t is input t{shift:+d}{by_loss}, while the newest input seen at step t is {seen}{copied}"
    return [finding("labels_shifted", measured, where=Where(None, 0))]


def label_shift(batch: Batch) -> int | None:
    """The k for which label t = input t + k wherever both are real; 1 is usual, none where there is no such k.

    n labels of m kinds agree by chance once in about mⁿ, which must be rare where k is not the usual one. A k below −1
    is a task of memory, not a mistake.
    """
    assert batch.labels is not None
    counts = batch.labels != batch.ignored
    T, agreeing = batch.steps, []
    for shift in (1, 0, 2, -1, 3):
        labels, inputs = slice(max(0, -shift), T - max(0, shift)), slice(max(0, shift), T - max(0, -shift))
        both = counts[:, labels] & batch.real_inputs[:, inputs]
        equal = batch.labels[:, labels] == batch.inputs[:, inputs]
        n, kinds = int(both.sum()), len(batch.labels[:, labels][both].unique())
        is_sure = n >= 2 if shift == 1 else n > 0 and n * math.log(kinds) >= UNLIKELY
        if is_sure and bool(equal[both].all()):
            agreeing.append(shift)
    # constant or periodic text agrees at several shifts, the right one among them
    return agreeing[0] if agreeing else None


def _newest_seen(subject: Subject, batch: Batch) -> int | None:
    """0 where logits at step t depend on input t, −1 where only on earlier ones; none for a model that sees ahead."""
    last = altered_at(batch, batch.steps - 1, batch.steps)
    newest = 0 if _sees(subject, batch, last) else _offset(subject, batch)
    if newest is not None and newest < 0:  # weights that start at 0 hide a dependence
        with jittered(subject.module), subject.mode():
            return _offset(subject, batch)
    return newest


def _sees(subject: Subject, batch: Batch, last: Batch) -> bool:
    """Whether the last logits, and only they, depend on the last input."""
    own, other = subject.logits(batch), subject.logits(last)
    return torch.equal(own[:, :-1], other[:, :-1]) and not torch.equal(own[:, -1], other[:, -1])


def _offset(subject: Subject, batch: Batch) -> int | None:
    steps, changes = reach(subject, batch)
    offsets = {u - t for row, u in enumerate(steps) for t in changes[row].nonzero().flatten().tolist()}
    return max(offsets) if offsets and max(offsets) <= 0 else None


def _counted(subject: Subject, batch: Batch) -> list[Finding]:
    assert batch.labels is not None
    padded = ~batch.real_inputs & (batch.labels != batch.ignored)
    if padded.any():
        row, step = (int(index) for index in padded.nonzero()[0])
        measured = (
            f"{int(padded.sum())} labels stand at padded positions and are not {batch.ignored}, the ignored label"
        )
        line = None if batch.lines is None else batch.lines[row]
        return [finding("pads_counted", measured, where=Where(None, step, line))]
    return [] if subject.adapter.loss is None else _counted_by_loss(subject, batch)


def _counted_by_loss(subject: Subject, batch: Batch) -> list[Finding]:
    assert batch.labels is not None
    if batch.ignore_index is None and batch.pad is None:
        return []
    logits = subject.logits(batch).detach().requires_grad_()
    labels = pad_columns(batch.labels, (0, 1), value=batch.ignored)  # at least one position without a label
    wide = torch.cat([logits, logits[:, :1]], 1)
    loss = subject.loss(_labelled(batch, labels), wide)
    (gradient,) = torch.autograd.grad(loss, wide)
    share = gradient[labels == batch.ignored].abs().sum() / gradient.abs().sum().clamp(min=1e-30)
    narrow = float(subject.loss(batch, logits).detach())
    moved = abs(float(loss.detach()) - narrow) / max(abs(narrow), 1e-30)
    if share <= 1e-6 and (moved <= 1e-4 or _is_sum(subject, batch, logits)):
        return []
    measured = (
        f"positions without a label get {float(share):.1%} of the loss's gradient; one more column of them moves the"
        f" loss by {moved:.1%}"
    )
    return [finding("pads_counted", measured)]


def _is_sum(subject: Subject, batch: Batch, logits: Tensor) -> bool:
    """A loss that is summed rather than averaged doubles with the batch."""
    assert batch.labels is not None
    twice = _labelled(batch, torch.cat([batch.labels, batch.labels]))
    ratio = subject.loss(twice, torch.cat([logits, logits])) / subject.loss(batch, logits)
    return math.isclose(float(ratio.detach()), 2.0, rel_tol=1e-3)


def _labelled(batch: Batch, labels: Tensor) -> Batch:
    """What a loss needs of a batch, with other labels."""
    return Batch(labels, labels, pad=batch.pad, ignore_index=batch.ignore_index)


# --- what a loss does with labels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Charged:
    """Which logits a loss holds labels against, measured on random logits.

    `norms` (B, T) are those of the loss's gradient at each step; `places` has pairs of a label and the one place whose
    gradient moves with it, as (row, step).
    """

    norms: Tensor
    places: tuple[tuple[tuple[int, int], tuple[int, int]], ...]

    @classmethod
    def of(cls, subject: Subject, batch: Batch) -> _Charged:
        """Change some labels, one at a time."""
        assert batch.labels is not None
        labels, real = batch.labels, batch.labels != batch.ignored
        here = real.nonzero()
        logits = torch.randn(subject.logits(batch).shape, generator=torch.Generator().manual_seed(0))
        logits = logits.to(subject.logits(batch)).requires_grad_()
        own = _gradient(subject, batch, logits)
        norms, places = own.norm(dim=-1), []
        chosen = {int(len(here) * (GOLDEN * probe % 1)) for probe in range(PROBES)}
        for row, step in here[sorted(chosen)].tolist():
            others = labels[real & (labels != labels[row, step])]
            if not len(others):
                continue
            altered = labels.clone()
            altered[row, step] = others[0]
            new = _gradient(subject, replace(batch, labels=altered), logits)
            scale = (new.norm(dim=-1) / norms)[norms > 0].median()  # of a mean over another number or weight of labels
            moved = (new - scale * own).norm(dim=-1)
            changed = (moved > 1e-3 * moved.max()).nonzero().tolist()
            if len(changed) == 1:
                places.append(((row, step), tuple(changed[0])))
        return cls(norms, tuple(places))

    @property
    def offset(self) -> int:
        """Logits t + offset are held against label t; 0 where it cannot be told."""
        return self.places[0][1][1] - self.places[0][0][1] if self.places and not self.is_mixed else 0

    @property
    def is_mixed(self) -> bool:
        """Whether labels meet logits of other rows, or of steps at various distances."""
        moves = {(there[0] - here[0], there[1] - here[1]) for here, there in self.places}
        return len(moves) > 1 or any(rows for rows, _ in moves)


def _gradient(subject: Subject, batch: Batch, logits: Tensor) -> Tensor:
    """∂loss/∂logits (B, T, V); zeros of a loss that has none."""
    reseed()
    loss = subject.loss(batch, logits)
    return torch.autograd.grad(loss, logits)[0] if loss.requires_grad else torch.zeros_like(logits)


def _mixed(charged: _Charged) -> list[Finding]:
    here, there = next(place for place in charged.places if place[0] != place[1])
    measured = (
        f"the loss holds the label of row {here[0]}, step {here[1]} against the logits of row {there[0]}, step"
        f" {there[1]}"
    )
    advice = "flatten logits (B, T, V) and labels (B, T) in the same order of axes"
    return [finding("labels_shifted", measured, advice=advice)]


def _uncounted(charged: _Charged, batch: Batch) -> list[Finding]:
    """A symbol whose labels the loss leaves out, though the batch says that they count."""
    assert batch.labels is not None
    if charged.is_mixed or not charged.places:
        return []
    T, offset = batch.steps, charged.offset
    labels = batch.labels[:, max(0, -offset) : T - max(0, offset)]
    norms = charged.norms[:, max(0, offset) : T - max(0, -offset)]
    counts = (labels != batch.ignored) & (norms > 0).any(0)  # some losses leave out the first step, or the last
    left_out = counts & (norms == 0)
    kinds = labels[left_out].unique()
    if len(kinds) != 1 or not torch.equal(left_out, counts & (labels == kinds)) or _is_padding(labels == kinds, batch):
        return []
    row, step = (int(index) for index in left_out.nonzero()[0])
    line = None if batch.lines is None else batch.lines[row]
    measured = f"none of the {int(left_out.sum())} labels of symbol {int(kinds)} has a gradient at its logits"
    return [finding("labels_uncounted", measured, where=Where(None, step - min(0, offset), line))]


def _is_padding(where: Tensor, batch: Batch) -> bool:
    """Whether these are the ends of rows, more than one in some, of a batch that does not name its padding."""
    is_named = batch.pad is not None or batch.mask is not None or batch.ignore_index is not None
    at_end = where.long().flip(1).cummin(1).values.flip(1).bool()
    return not is_named and torch.equal(at_end, where) and bool((where.sum(1) > 1).any())


def _normalised(subject: Subject, batch: Batch) -> list[Finding]:
    """Whether the loss is one of log-probabilities, linear in what it is given, while the model gives logits."""
    logits = subject.logits(batch).detach()
    if logits.shape[-1] == 1 or float(logits.float().logsumexp(-1).abs().max()) < 1e-3:
        return []

    def loss(added: float) -> float:
        reseed()
        return float(subject.loss(batch, logits + added).detach())

    down, own, up = loss(-1.0), loss(0.0), loss(1.0)
    if abs(up - own) < 0.1 or not math.isclose(up - own, own - down, rel_tol=1e-3):
        return []
    measured = f"1 added to all logits of every step moves the loss by {up - own:.3g}"
    return [finding("logits_not_normalised", measured)]
