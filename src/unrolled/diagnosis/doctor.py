"""A whole run: its log, its data and its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from unrolled.diagnosis.examine import Examination, examine
from unrolled.diagnosis.exposure import exposure_gap
from unrolled.diagnosis.findings import Finding, worst_first
from unrolled.diagnosis.held_out import check_attention_moves, check_generalisation
from unrolled.diagnosis.material import Material, open_material
from unrolled.diagnosis.source import check_source
from unrolled.diagnosis.training_log import (
    ENOUGH_STEPS,
    check_dev_values,
    check_halt,
    check_progress,
    check_skipped_steps,
    check_start,
    num_steps,
)

__all__ = ["examine_run"]

FEW, MANY = 4, 128
"""Examples for the checks that take a model apart, and for those that only run it."""
PARTS = {"model": "the weights", "train": "the training data", "dev": "the dev data"}
SHORT, LONG = 12, 40
"""Most symbols of these, where there are enough of them."""


def examine_run(path: str | Path, *, data: str | Path | None = None) -> Examination:
    """Say what is wrong with a run, worst first: its log, its data, and its model on a few of its examples.

    Parameters
    ----------
    path : path
        The run folder, of any kind; also of a training that was interrupted or has diverged.
    data : path, optional
        Data to look at in place of what the run was trained on.

    Raises
    ------
    CheckpointError
        If the folder is no run, or damaged.
    DataError
        If `data` cannot be used.
    """
    material = open_material(path, data)
    events, num_symbols = material.events, material.num_symbols
    checks: dict[str, Callable[[], Sequence[Finding]]] = {}
    if num_symbols is not None:
        checks["check_start"] = lambda: check_start(events, num_symbols)
        checks["check_progress"] = lambda: check_progress(events, num_symbols)
    checks |= {
        "check_skipped_steps": lambda: check_skipped_steps(events),
        "check_halt": lambda: check_halt(events),
        "check_dev_values": lambda: check_dev_values(events),
        **material.data_checks(),
    }
    findings = [found for check in checks.values() for found in check()]
    seen = _examine_model(material, is_stuck=any(found.name == "loss_stuck" for found in findings))
    return Examination(
        findings=tuple(worst_first(_distinct([*findings, *seen.findings]))),
        checked=(*checks, *seen.checked),
        skipped={**seen.skipped, **{PARTS[name]: why for name, why in material.missing.items()}},
        failed=seen.failed,
    )


def _examine_model(material: Material, *, is_stuck: bool) -> Examination:
    """Take the model apart on a few examples, then run it on more; a stuck one also has to learn a few by heart."""
    model, held_out = material.model, material.sample(MANY, longest=LONG, is_held_out=True)
    few, known = material.sample(FEW, longest=SHORT), material.sample(MANY, longest=LONG)
    if few is None or known is None:
        few, known = material.sample(FEW, longest=SHORT, is_held_out=True), held_out
    if model is None or few is None or known is None:
        return Examination((), (), {"the model's checks": "they need weights and data; name a file with --data"})
    seen = examine(model, few, adapter=material.adapter, overfit=is_stuck)
    if "non_finite" in seen.names:
        return seen
    batch = known if held_out is None else held_out
    findings = [*seen.findings]
    if batch.source is not None:
        gap = exposure_gap(model, batch)
        findings += [*check_source(model, batch), *(() if gap is None else gap.findings)]
    late, checked, skipped = ("check_generalisation", "check_attention_moves"), seen.checked, seen.skipped
    if num_steps(material.events) < ENOUGH_STEPS:
        skipped = skipped | dict.fromkeys(late, f"fewer than {ENOUGH_STEPS} steps were taken")
    else:
        findings += check_generalisation(model, known, held_out, adapter=material.adapter, blind=material.blind_loss)
        findings += check_attention_moves(model, batch)
        checked = (*checked, *late)
    return Examination(tuple(findings), checked, skipped, seen.failed)


def _distinct(findings: Sequence[Finding]) -> list[Finding]:
    """One finding a name and module; what the log says comes first."""
    distinct: dict[tuple[str, str | None], Finding] = {}
    for found in findings:
        distinct.setdefault((found.name, found.where.module), found)
    return list(distinct.values())
