"""What happens when the model reads its own output instead of the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding, finding
from unrolled.diagnosis.objective import label_shift
from unrolled.diagnosis.untouched import untouched

__all__ = ["ExposureGap", "exposure_gap"]

WIDE = 0.5
"""Mean gap above which more than half of all symbols are right only thanks to a true prefix."""


@dataclass(frozen=True)
class ExposureGap:
    """Error rates by step, up to the true length (NaN where no example is so long).

    Attributes
    ----------
    own, true : ndarray (T,)
        P(ŷ_t ≠ y_t) after the model's own prefix (always the likeliest symbol) and after the true one.
    findings : tuple of Finding
        `exposure_gap`.
    """

    own: NDArray[np.float64]
    true: NDArray[np.float64]
    findings: tuple[Finding, ...]

    @property
    def gap(self) -> NDArray[np.float64]:
        """Own minus true, (T,)."""
        return self.own - self.true


def exposure_gap(model: Any, batch: Any, *, adapter: Adapter | None = None) -> ExposureGap | None:
    """Compare errors after the model's own prefix with errors after the true prefix.

    For pairs whose labels are the inputs shifted by one; none for anything else (a text has many good continuations, so
    that its gap says nothing).
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    if batch.source is None or not batch.has_classes or label_shift(batch) != 1:
        return None
    assert batch.labels is not None
    with untouched(subject.module), subject.mode(), torch.no_grad():
        guided = subject.logits(batch)
        if guided.shape[:2] != batch.inputs.shape:
            return None
        prefix = batch.inputs[:, :1]
        for step in range(batch.steps):
            seen = replace(batch.columns(0, step + 1), inputs=prefix)
            prefix = torch.cat([prefix, subject.logits(seen)[:, -1:].argmax(-1)], 1)
    free = prefix[:, 1:]
    counts = batch.labels != batch.ignored
    own, true = (_error_rate(guess, batch.labels, counts) for guess in (free, guided.argmax(-1)))
    totals = [float((guess != batch.labels)[counts].double().mean()) for guess in (free, guided.argmax(-1))]
    findings = []
    if totals[0] - totals[1] > WIDE:
        measured = f"symbol errors {totals[0]:.1%} after the model's own prefix, {totals[1]:.1%} after the true one"
        findings.append(finding("exposure_gap", measured))
    return ExposureGap(own, true, tuple(findings))


def _error_rate(guess: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor) -> NDArray[np.float64]:
    wrong = torch.where(counts, (guess != labels).double(), torch.nan)
    rates: NDArray[np.float64] = wrong.nanmean(0).cpu().numpy()
    return rates
