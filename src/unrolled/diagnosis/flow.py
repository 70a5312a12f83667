"""Where gradients go: through time, through depth, to each weight; and units that no longer respond."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.dependence import altered_at
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.probe import input_gradient_norms, input_gradients, is_covered
from unrolled.diagnosis.recurrence import Run, opened
from unrolled.diagnosis.trace import hooked
from unrolled.diagnosis.untouched import jittered, untouched

__all__ = ["GradientFlow", "gradient_flow"]

RATIO = 1e3
"""Largest ratio of the gradients of the first and the last block. Clipping scales both alike, so the weaker one then
moves a thousand times less per unit of gradient, and half precision (8 bits) drops it beside the other."""


@dataclass(frozen=True)
class GradientFlow:
    """Gradients of the loss of one batch, in evaluation mode.

    Attributes
    ----------
    states : dict of str to ndarray (T,)
        ‖∂L/∂s_t‖ over the batch for every recurrent direction, all later steps included, in its own order of steps.
    inputs : ndarray (T,)
        ‖∂L_T/∂input_u‖, L_T the loss of the last step alone: how far back the last label looks.
    depth : dict of str to ndarray
        ‖∂L/∂output‖ of the blocks of each stack, first block first.
    weights : dict of str to float
        ‖∂L/∂W‖ of every trainable weight.
    findings : tuple of Finding
        `vanishing_gradient_depth`, `exploding_gradient_depth`, `no_gradient`, `unregistered_weights`, and
        `vanishing_gradient_time` where the graph is cut between steps.
    """

    states: dict[str, NDArray[np.float64]]
    inputs: NDArray[np.float64]
    depth: dict[str, NDArray[np.float64]]
    weights: dict[str, float]
    findings: tuple[Finding, ...]


def gradient_flow(model: Any, batch: Any, *, adapter: Adapter | None = None) -> GradientFlow:
    """Follow the gradient of the loss (without labels: of a random direction of the logits) back to everything.

    Parameters
    ----------
    model : nn.Module or callable
    batch : Batch or anything that `Batch.of` takes
    adapter : Adapter, optional
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)

    def measured(measure: Callable[[Subject, Batch], Any]) -> Any:
        with untouched(subject.module), subject.mode():  # a module that keeps its state must not join two runs
            return measure(subject, batch)

    states, inputs = measured(_through_time), measured(_to_inputs)
    depth, weights = measured(_through_depth), measured(_to_weights)
    findings = [*_depth_findings(depth), *measured(_no_gradient), *measured(_unregistered)]
    findings += measured(_cut)
    return GradientFlow(states, inputs, {name: norms for name, (norms, _) in depth.items()}, weights, tuple(findings))


def _loss(subject: Subject, batch: Batch, logits: Tensor) -> Tensor:
    """The loss, or a fixed random direction of the logits where there is none."""
    is_scored = batch.has_classes and logits.shape[:2] == batch.labels.shape  # type: ignore[union-attr]
    if is_scored and torch.ne(batch.labels, batch.ignored).any():  # type: ignore[arg-type]
        return subject.loss(batch, logits)
    if batch.labels is not None and subject.adapter.loss is not None:
        return subject.loss(batch, logits)
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    return (logits * direction).mean()


def _norms(loss: Tensor, tensors: list[Tensor]) -> list[float]:
    if not tensors or not loss.requires_grad:
        return [0.0] * len(tensors)
    found = torch.autograd.grad(loss, tensors, allow_unused=True, retain_graph=True)
    return [0.0 if gradient is None else float(gradient.detach().double().norm()) for gradient in found]


def _through_time(subject: Subject, batch: Batch) -> dict[str, NDArray[np.float64]]:
    with opened(subject) as runs:
        loss = _loss(subject, batch, subject.logits(batch))
    norms: dict[str, NDArray[np.float64]] = {}
    for run in runs:
        norms[run.direction.name] = np.array(_norms(loss, _live(run)))
    return norms


def _to_inputs(subject: Subject, batch: Batch) -> NDArray[np.float64]:
    with input_gradients(batch) as (probed, probes):
        logits = subject.logits(probed)
    if not probes or not logits.requires_grad:
        return np.full(batch.steps, np.nan)
    loss = _loss(subject, batch.columns(batch.steps - 1, batch.steps), logits[:, -1:])
    return input_gradient_norms(loss, probes, batch.steps).numpy()


_CUT = "look for detach() or no_grad() inside of the loop over time"


def _cut(subject: Subject, batch: Batch) -> list[Finding]:
    """A cut graph: the last logits depend on what came before, and their gradient does not reach it."""
    with opened(subject) as runs:
        logits = subject.logits(batch)
    last = _loss(subject, Batch(batch.inputs[:, -1:]), logits[:, -1:])
    norms = {run.direction.name: _norms(last, _live(run)) for run in runs}
    names = [name for name, sizes in norms.items() if len(sizes) > 2 and sizes[-1] > 0 and not any(sizes[:-1])]
    if names:
        measured = "∂L_T/∂s_t is exactly 0 for every state before the last one"
        return [finding("vanishing_gradient_time", measured, where=Where(", ".join(names)), advice=_CUT)]
    return [] if runs or batch.inputs.is_floating_point() else _cut_by_inputs(subject, batch)


def _cut_by_inputs(subject: Subject, batch: Batch) -> list[Finding]:
    """The same for recurrences that are written by hand."""
    with input_gradients(batch) as (probed, probes):
        logits = subject.logits(probed)
    if batch.steps < 3 or not probes or logits.shape[1] != batch.steps or not logits.requires_grad:
        return []
    sizes = input_gradient_norms(_loss(subject, Batch(batch.inputs[:, -1:]), logits[:, -1:]), probes, batch.steps)
    other = altered_at(batch, 0, batch.steps - 1)
    is_cut = sizes[-1] > 0 and not sizes[:-1].any() and is_covered(subject.logits, batch, other)
    if not is_cut or torch.equal(subject.logits(batch)[:, -1], subject.logits(other)[:, -1]):
        return []
    measured = "the last logits depend on earlier inputs, but ∂L_T/∂input_u is exactly 0 for every u < T"
    return [finding("vanishing_gradient_time", measured, where=Where(subject.name), advice=_CUT)]


def _live(run: Run) -> list[Tensor]:
    return [state if state.requires_grad else state.detach().requires_grad_() for state in run.states]


def _to_weights(subject: Subject, batch: Batch) -> dict[str, float]:
    named = {name: weight for name, weight in subject.parameters.items() if weight.requires_grad}
    loss = _loss(subject, batch, subject.logits(batch))
    return dict(zip(named, _norms(loss, list(named.values())), strict=True))


# --- depth -----------------------------------------------------------------------------------------------------------


def _through_depth(subject: Subject, batch: Batch) -> dict[str, tuple[NDArray[np.float64], list[str]]]:
    """Gradient norms along each stack of at least three modules of one class, each the input of the next."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, _args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.requires_grad:
            outputs[name] = first

    with hooked(subject, keep):
        loss = _loss(subject, batch, subject.logits(batch))
    found = {}
    for names in _stacks(subject.module):
        called = [name for name in names if name in outputs]
        if len(called) > 2 and _is_chain([outputs[name] for name in called]):
            found[called[0]] = (np.array(_norms(loss, [outputs[name] for name in called])), called)
    return found


def _stacks(module: nn.Module | None) -> Iterator[list[str]]:
    for parent, part in [] if module is None else module.named_modules():
        by_class: dict[type, list[str]] = {}
        for name, child in part.named_children():
            if any(True for _ in child.parameters()):
                by_class.setdefault(type(child), []).append(f"{parent}.{name}".lstrip("."))
        yield from (names for names in by_class.values() if len(names) > 2)


def _is_chain(outputs: list[Tensor]) -> bool:
    """Whether each output leads to the next, so that they are layers on top of each other and not side by side."""
    for one, other in pairwise(outputs):
        if torch.autograd.grad(other.sum(), one, allow_unused=True, retain_graph=True)[0] is None:
            return False
    return True


def _depth_findings(depth: dict[str, tuple[NDArray[np.float64], list[str]]]) -> Iterator[Finding]:
    for norms, names in depth.values():
        first, last = float(norms[0]), float(norms[-1])
        if last == 0.0 or not np.isfinite(norms).all():
            continue
        measured = f"‖∂L/∂output‖ is {first:.2g} at {names[0]} and {last:.2g} at {names[-1]}"
        if first < last / RATIO:
            yield finding("vanishing_gradient_depth", measured, where=Where(names[0]))
        elif first > last * RATIO:
            yield finding("exploding_gradient_depth", measured, where=Where(names[0]))


# --- weights ---------------------------------------------------------------------------------------------------------


def _no_gradient(subject: Subject, batch: Batch) -> list[Finding]:
    """Modules that take part and none of whose own weights gets any gradient, not even with moved weights."""
    called: list[str] = []
    with hooked(subject, lambda name, _args, _output: called.append(name)):
        subject.logits(batch)
    if subject.module is None or batch.steps < 2 or not _without(_to_weights(subject, batch), called):
        return []
    with jittered(subject.module), subject.mode():  # weights that start at 0 stop gradients only at the start
        stuck = _without(_to_weights(subject, batch), called)
    if not stuck:
        return []
    others = f", and {len(stuck) - 1} more" if len(stuck) > 1 else ""
    measured = f"the gradient of {stuck[0]}{others} is exactly 0"
    if not stuck[0].endswith("_reverse"):
        return [finding("no_gradient", measured, where=Where(stuck[0]))]
    advice = "read the last state of each direction (h_n): at the last position the reverse one has seen one symbol"
    return [finding("no_gradient", measured, where=Where(stuck[0]), advice=advice)]


def _without(norms: dict[str, float], called: list[str]) -> list[str]:
    """Modules without any gradient; of others, recurrent weights of a direction that is read after its first step."""
    largest: dict[str, float] = {}
    for name, norm in norms.items():
        owner, _, own = name.rpartition(".")
        if own.startswith("weight_hh") and owner in called:
            largest[name] = norm
        largest[owner] = max(largest.get(owner, 0.0), norm)
    stuck = [name for name, norm in largest.items() if norm == 0.0 and (name in called or name in norms)]
    return [name for name in stuck if name not in norms or name.rpartition(".")[0] not in stuck]


def _unregistered(subject: Subject, batch: Batch) -> list[Finding]:
    """Leaves of the graph that two runs share and that are no parameters: weights which no optimiser will see."""
    if subject.module is None:
        return []
    known = {id(weight) for weight in subject.parameters.values()}
    leaves = [_leaves(_loss(subject, batch, subject.logits(batch))) for _ in range(2)]
    lost = [leaf for key, leaf in leaves[0].items() if key in leaves[1] and key not in known]
    if not lost:
        return []
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in lost[:3])
    measured = f"{len(lost)} trainable tensors are not among model.parameters(): shapes {shapes}"
    return [finding("unregistered_weights", measured, where=Where(subject.name))]


def _leaves(loss: Tensor) -> dict[int, Tensor]:
    leaves, todo, seen = {}, [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves[id(variable)] = variable
        todo += [following for following, _ in node.next_functions]
    return leaves
