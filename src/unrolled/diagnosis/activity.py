"""Units that no longer respond: rectified ones that are never active, tanh and sigmoid ones that are always flat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.cells import GATES
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.memory import gates_of
from unrolled.diagnosis.operations import Nonlinearity, observed
from unrolled.diagnosis.recurrence import opened
from unrolled.diagnosis.untouched import untouched
from unrolled.models.recurrent import RecurrentLayers

__all__ = ["Activations", "Activity", "activations"]

FEWEST_ROWS = 16
FAR = 6.0
"""A unit whose input lies this many standard deviations under 0 is dead: even for normal inputs it is active once in a
billion positions, while a unit that is merely rare lies nearer. The deviation is that over the batch, or over random
inputs of the same length if larger: a batch whose inputs hardly differ proves nothing."""
DEAD = 0.25
FLAT = 0.05
"""Mean slope, relative to the steepest, under which a layer is saturated: it passes a twentieth of the gradient."""


@dataclass(frozen=True)
class Activity:
    """One nonlinearity on one batch.

    Attributes
    ----------
    module : str
    kind : str
        `relu`, `tanh`, `sigmoid`, or a gate: `input gate`, `reset gate`, …
    dead : float
        Share of units that are never active (relu only).
    slope : float
        Mean slope relative to the steepest: 1 in the middle, 0 saturated (relu: share of active values).
    """

    module: str
    kind: str
    dead: float
    slope: float


@dataclass(frozen=True)
class Activations:
    """All nonlinearities of a model, and what is wrong with them."""

    layers: tuple[Activity, ...]
    findings: tuple[Finding, ...]


def activations(model: Any, batch: Any, *, adapter: Adapter | None = None) -> Activations:
    """Measure every relu, tanh and sigmoid of a model, functional ones and gates of recurrent layers included.

    A forget gate that stays open, and a GRU's gates that keep the old state, are flat and right: they are left out.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    with untouched(subject.module), subject.mode():
        with observed(subject) as operations:
            logits = subject.logits(batch)
        seen = [one for one in operations.nonlinearities(batch.size) if not _is_inside(one, subject, logits)]
        with torch.no_grad(), opened(subject) as runs:
            subject.logits(batch)
    layers = [_measured(one) for one in seen if len(one.before) >= FEWEST_ROWS]
    for run in runs:
        weights = run.direction.weights
        for kind, values in zip(GATES[weights.cell], gates_of(run), strict=True):
            if kind not in ("forget gate", "update gate", "reset gate"):
                layers.append(_of_gate(run.direction.name, kind, values, is_relu=weights.is_relu))
    return Activations(tuple(layers), tuple(_findings(layers, subject)))


def _is_inside(one: Nonlinearity, subject: Subject, logits: Tensor) -> bool:
    """Gates of recurrent layers are measured by name; the model's own output may be as flat as it likes."""
    part = None if subject.module is None else subject.module.get_submodule(one.module)
    is_recurrent = isinstance(part, nn.RNNBase | nn.RNNCellBase)
    is_output = one.after.numel() == logits.numel() and torch.equal(one.after.flatten(), logits.detach().flatten())
    return is_recurrent or is_output or isinstance(part, RecurrentLayers)


def _measured(one: Nonlinearity) -> Activity:
    if one.kind == "relu":
        mean, deviation = one.before.double().mean(0), one.before.double().std(0)
        dead = (one.before <= 0).all(0) & (mean + FAR * torch.maximum(deviation, one.spread.double()) < 0)
        return Activity(one.module, "relu", float(dead.double().mean()), float((one.before > 0).double().mean()))
    return Activity(one.module, one.kind, 0.0, _slope(one.kind, one.after))


def _slope(kind: str, after: Tensor) -> float:
    after = after.double()
    slope = 4 * after * (1 - after) if kind == "sigmoid" else 1 - after.square()
    return float(slope.mean())


def _of_gate(name: str, kind: str, values: Tensor, *, is_relu: bool) -> Activity:
    if is_relu:
        return Activity(name, "relu", 0.0, float((values > 0).double().mean()))
    return Activity(name, kind, 0.0, _slope("sigmoid" if kind.endswith("gate") else "tanh", values))


def _findings(layers: list[Activity], subject: Subject) -> list[Finding]:
    """One finding a name, with all modules concerned; the first one's numbers."""
    dead = {
        layer.module: f"{layer.dead:.0%} of the units are 0 everywhere and far from active"
        for layer in reversed(layers)
        if layer.dead >= DEAD
    }
    flat = {
        layer.module: f"mean slope of the {layer.kind} is {layer.slope:.2g} of the steepest"
        for layer in reversed(layers)
        if layer.kind != "relu" and layer.slope < FLAT
    }
    found = []
    for name, places in (("dead_units", dead), ("saturated_units", flat)):
        modules = list(reversed(places))
        if modules:
            where = Where(", ".join(module or subject.name for module in modules))
            found.append(finding(name, places[modules[0]], where=where))
    return found
