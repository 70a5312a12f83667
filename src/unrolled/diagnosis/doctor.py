"""A whole run: its log, its data and its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from unrolled.diagnosis.examine import Examination, examine
from unrolled.diagnosis.exposure import exposure_gap
from unrolled.diagnosis.findings import Finding, worst_first
from unrolled.diagnosis.held_out import (
    check_attention_moves,
    check_generalisation,
    check_left_out,
    check_unknown_symbols,
)
from unrolled.diagnosis.material import Material, open_material, sample
from unrolled.diagnosis.overlap import check_overlap
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
"""Pairs for the checks that take a model apart, and for those that only run it."""
SHORT, LONG = 12, 40
"""Most symbols of these pairs, where there are enough of them."""
SAMPLED = 20_000
"""Pairs of the training file that are measured for their lengths."""


def examine_run(path: str | Path, *, data: str | Path | None = None) -> Examination:
    """Say what is wrong with a run, worst first: its log, its data, and its model on a few of its pairs.

    Parameters
    ----------
    path : path
        The run folder; also of a training that was interrupted or has diverged.
    data : path, optional
        Pairs to look at in place of those that the run was trained on.

    Raises
    ------
    CheckpointError
        If the folder is no run, or damaged.
    DataError
        If `data` cannot be used.
    """
    material = open_material(path, data)
    num_symbols = len(material.codec.target)
    checks: dict[str, Callable[[], Sequence[Finding]]] = {
        "check_start": lambda: check_start(material.events, num_symbols),
        "check_progress": lambda: check_progress(material.events, num_symbols),
        "check_skipped_steps": lambda: check_skipped_steps(material.events),
        "check_halt": lambda: check_halt(material.events),
        "check_dev_values": lambda: check_dev_values(material.events),
        **_data_checks(material),
    }
    findings = [found for check in checks.values() for found in check()]
    seen = _examine_model(material, is_stuck=any(found.name == "loss_stuck" for found in findings))
    return Examination(
        findings=tuple(worst_first(_distinct([*findings, *seen.findings]))),
        checked=(*checks, *seen.checked),
        skipped={**seen.skipped, **{f"the {name}": why for name, why in material.missing.items()}},
    )


def _data_checks(material: Material) -> dict[str, Callable[[], Sequence[Finding]]]:
    codec, train, dev = material.codec, material.train, material.dev
    if train is None:
        return {}
    some = train.take(np.random.default_rng(0).permutation(len(train))[:SAMPLED])
    checks: dict[str, Callable[[], Sequence[Finding]]] = {
        "check_unknown_symbols": lambda: check_unknown_symbols(sample(codec, some, MANY, longest=LONG), name=some.file),
        "check_left_out": lambda: check_left_out(codec, some),
    }
    if dev is not None and codec.data.task is None:  # an endless task draws a short pair again and again
        checks["check_overlap"] = lambda: check_overlap(train, dev)
    return checks


def _examine_model(material: Material, *, is_stuck: bool) -> Examination:
    """Take the model apart on a few pairs, then run it on more; a stuck one also has to learn a few pairs by heart."""
    codec, model, train = material.codec, material.model, material.train
    pairs = material.dev if train is None else train
    if model is None or pairs is None:
        return Examination((), (), {"the model's checks": "they need weights and pairs; name a file with --data"})
    seen = examine(model, sample(codec, pairs, FEW, longest=SHORT), overfit=is_stuck)
    if "non_finite" in seen.names:
        return seen
    known = sample(codec, pairs, MANY, longest=LONG)
    held_out = None if material.dev is None else sample(codec, material.dev, MANY, longest=LONG)
    batch = known if held_out is None else held_out
    gap = exposure_gap(model, batch)
    findings = [*seen.findings, *check_source(model, batch), *(() if gap is None else gap.findings)]
    late, checked, skipped = ("check_generalisation", "check_attention_moves"), seen.checked, seen.skipped
    if num_steps(material.events) < ENOUGH_STEPS:
        skipped = skipped | dict.fromkeys(late, f"fewer than {ENOUGH_STEPS} steps were taken")
    else:
        findings += [*check_generalisation(model, known, held_out), *check_attention_moves(model, batch)]
        checked = (*checked, *late)
    return Examination(tuple(findings), checked, skipped)


def _distinct(findings: Sequence[Finding]) -> list[Finding]:
    """One finding a name and module; what the log says comes first."""
    distinct: dict[tuple[str, str | None], Finding] = {}
    for found in findings:
        distinct.setdefault((found.name, found.where.module), found)
    return list(distinct.values())
