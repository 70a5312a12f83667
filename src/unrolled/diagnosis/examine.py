"""All checks that apply to a model and a batch, worst finding first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from unrolled.diagnosis.activity import activations
from unrolled.diagnosis.adapter import Adapter, Loss, Subject
from unrolled.diagnosis.attention import check_attention
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.dependence import check_batch_independence, check_causal
from unrolled.diagnosis.evaluation import check_eval_mode, check_finite
from unrolled.diagnosis.exposure import exposure_gap
from unrolled.diagnosis.findings import Finding, worst_first
from unrolled.diagnosis.flow import gradient_flow
from unrolled.diagnosis.memory import check_forget_bias, check_memory
from unrolled.diagnosis.objective import check_first_loss, check_labels
from unrolled.diagnosis.overfitting import check_overfits_one_batch
from unrolled.diagnosis.padding import check_padding, padded_side
from unrolled.diagnosis.source import check_source
from unrolled.diagnosis.state import check_state_handling, detached
from unrolled.diagnosis.stepping import check_stepwise
from unrolled.diagnosis.untouched import untouched

__all__ = ["Examination", "examine"]


@dataclass(frozen=True)
class Examination(Sequence[Finding]):
    """What was checked and what was found; a sequence of findings, worst first, empty for a healthy model.

    Attributes
    ----------
    findings : tuple of Finding
    checked : tuple of str
        Checks that ran.
    skipped : dict of str to str
        Checks that have nothing to look at, and why.
    failed : dict of str to str
        Checks that an error ended, often one of the model's own.
    """

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    skipped: dict[str, str]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Names of all findings."""
        return {found.name for found in self.findings}

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        lines = [found.line() for found in self.findings] or [f"nothing found; checked: {', '.join(self.checked)}"]
        return "\n".join([*lines, *(f"could not be checked: {name} ({why})" for name, why in self.failed.items())])

    def to_json(self) -> dict[str, object]:
        """Findings, checks and reasons as JSON values."""
        return {
            "findings": [found.to_json() for found in self.findings],
            "checked": list(self.checked),
            "skipped": self.skipped,
            "failed": self.failed,
        }


Check = Callable[[], Sequence[Finding]]


def examine(
    model: Any,
    batch: Any,
    *,
    adapter: Adapter | None = None,
    loss: Loss | None = None,
    carry: Callable[[Any], Any] = detached,
    is_untrained: bool | None = None,
    overfit: bool = True,
) -> Examination:
    """Run every check that applies to a model and a batch.

    The model, its gradients, its mode and the global random state are left as they were. Checks after a non-finite
    value would measure nothing and are skipped, and so is the comparison of steps after a future leak: it follows.

    Parameters
    ----------
    model : nn.Module or callable
    batch : Batch or anything that `Batch.of` takes
        A few ragged examples are best: four rows, a dozen steps, real data.
    adapter : Adapter, optional
        How to call a model whose signature cannot be guessed.
    loss : callable, optional
        The training loss, `loss(logits, labels)`.
    carry : callable
        What the training loop does to the state between chunks of a text.
    is_untrained : bool, optional
        True if this is the first step: then a loss far below chance is a finding as well.
    overfit : bool
        False to leave out the only check that trains, on a copy.

    Raises
    ------
    ConfigError, ShapeError
        Where it cannot be told how to call the model; the message says what an adapter must do.
    """
    batch = Batch.of(batch)
    adapter = adapter or Adapter()
    adapter = adapter if loss is None else replace(adapter, loss=loss)
    subject = Subject(model, adapter)
    with untouched(subject.module), subject.mode():
        subject.logits(batch)  # what is raised here concerns the caller, not a check
    findings: list[Finding] = []
    checked: list[str] = []
    failed: dict[str, str] = {}
    skipped = _not_applicable(subject, batch, overfit=overfit)
    checks = _checks(model, batch, adapter, carry=carry, is_untrained=bool(is_untrained))
    for name, check in checks.items():
        skipped |= _pointless({found.name for found in findings}, checks)
        if name in skipped:
            continue
        try:
            findings += check()
            checked.append(name)
        except Exception as error:  # foreign code may raise anything; the other checks still count
            failed[name] = f"{type(error).__name__}: {error}"
    return Examination(tuple(worst_first(findings)), tuple(checked), skipped, failed)


def _checks(
    model: Any, batch: Batch, adapter: Adapter, *, carry: Callable[[Any], Any], is_untrained: bool
) -> dict[str, Check]:
    """All checks in the order in which they run: what makes others pointless comes first."""

    def run(check: Callable[..., Sequence[Finding]], **options: Any) -> Check:
        return lambda: check(model, batch, adapter=adapter, **options)

    return {
        "check_finite": run(check_finite),
        "check_attention": run(check_attention),
        "check_eval_mode": run(check_eval_mode),
        "check_causal": run(check_causal),
        "check_padding": run(check_padding),
        "check_batch_independence": run(check_batch_independence),
        "check_stepwise": run(check_stepwise),
        "check_state_handling": run(check_state_handling, carry=carry),
        "check_source": run(check_source),
        "check_first_loss": run(check_first_loss, is_untrained=is_untrained),
        "check_labels": run(check_labels),
        "check_forget_bias": lambda: check_forget_bias(model, adapter=adapter),
        "check_memory": run(check_memory),
        "gradient_flow": lambda: gradient_flow(model, batch, adapter=adapter).findings,
        "activations": lambda: activations(model, batch, adapter=adapter).findings,
        "exposure_gap": lambda: _gap(model, batch, adapter),
        "check_overfits_one_batch": run(check_overfits_one_batch),
    }


def _gap(model: Any, batch: Batch, adapter: Adapter) -> Sequence[Finding]:
    measured = exposure_gap(model, batch, adapter=adapter)
    return () if measured is None else measured.findings


def _not_applicable(subject: Subject, batch: Batch, *, overfit: bool) -> dict[str, str]:
    """Checks that have nothing to look at, and why."""
    reasons: dict[str, str] = {}
    if not subject.adapter.is_causal:
        reasons |= dict.fromkeys(("check_causal", "check_stepwise"), "the model may look at all of its inputs")
    if batch.source is None:
        reasons |= dict.fromkeys(("check_source", "exposure_gap"), "no source")
    with untouched(subject.module), subject.mode():
        side = padded_side(subject, batch)
    if side is None or (side == "source" and batch.source_mask is None and batch.real(side).all()):
        reasons["check_padding"] = "no padding that a real position could see"
    if batch.labels is None:
        reasons |= dict.fromkeys(("check_first_loss", "check_labels", "check_overfits_one_batch"), "no labels")
    if not overfit:
        reasons["check_overfits_one_batch"] = "not asked for"
    return reasons


_OTHER_SHAPES = ("check_padding", "check_batch_independence", "check_stepwise")
"""Checks that compare runs of different shapes, which draw different random numbers."""


def _pointless(found: set[str], checks: Iterable[str]) -> dict[str, str]:
    """Checks that would only repeat what was found already, and why."""
    reasons: dict[str, str] = {}
    if "non_finite" in found:  # attention may be the reason
        reasons |= dict.fromkeys(set(checks) - {"check_finite", "check_attention"}, "values are not finite")
    if "future_leak" in found:
        reasons["check_stepwise"] = "follows from the future leak"
    if "dropout_in_eval" in found:
        reasons |= dict.fromkeys(_OTHER_SHAPES, "the model is random in evaluation mode")
    return reasons
