"""What happens to the state between calls: it must be used, be updated, end with its sequence, and cut the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unrolled.diagnosis.adapter import Adapter, Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.dependence import altered_at
from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.diagnosis.regions import SAME_SHAPE, Everywhere, difference
from unrolled.diagnosis.trace import first_suspect, hooked, record, tensors_in, with_tensors
from unrolled.diagnosis.untouched import jittered, untouched

__all__ = ["check_state_handling", "detached"]


def check_state_handling(
    model: Any,
    batch: Any,
    *,
    adapter: Adapter | None = None,
    carry: Callable[[Any], Any] | None = None,
) -> list[Finding]:
    """Whether the state does what it must between calls: be used, be updated, end with its sequence, cut the graph.

    Parameters
    ----------
    model, batch, adapter
        As for every check.
    carry : callable, optional
        What the training loop does to the state before the next chunk, e.g. `detached`. Without it the state goes on
        as the model returned it, so that an attached one is reported (models of the decoder contract: detached).

    Returns
    -------
    list of Finding
        `state_lost`, `state_carried`, `state_not_detached`.
    """
    subject, batch = Subject(model, adapter), Batch.of(batch)
    if batch.steps < 3:
        return []
    with untouched(subject.module):
        found = _carried(subject, batch) + _no_memory(subject, batch) + _kept_graph(subject, batch)
        if subject.can_step:
            found += _unused(subject, batch) + _attached(subject, batch, carry)
            found += _reset_ignored(subject, batch)
    return list({(one.name, one.where): one for one in found}.values())


def _carried(subject: Subject, batch: Batch) -> list[Finding]:
    """The same batch twice, an unrelated one in between."""
    other = batch.with_inputs_altered(torch.ones_like(batch.real_inputs))
    for training in (False, True):
        with untouched(subject.module), subject.mode(training=training), torch.no_grad():
            first = record(subject, lambda: subject.connected_logits(batch))
            subject.connected_logits(other)
            second = record(subject, lambda: subject.connected_logits(batch))
        size = difference(first.logits, second.logits)
        if size > SAME_SHAPE:
            suspect = first_suspect(first, second, Everywhere())
            module = subject.name if suspect is None else suspect.module or subject.name
            measured = f"the same batch gives other logits after an unrelated one (relative change {size:.2g})"
            return [finding("state_carried", measured, where=Where(module))]
    return []


def _no_memory(subject: Subject, batch: Batch) -> list[Finding]:
    """No logit depends on any input before its own step, not even with moved weights."""
    with untouched(subject.module), subject.mode(), torch.no_grad():
        if subject.logits(batch).shape[1] != batch.steps or _remembers(subject, batch):
            return []
    with jittered(subject.module), subject.mode(), torch.no_grad():
        if _remembers(subject, batch):
            return []
    return [finding("state_lost", "logits at step t depend on no input before t")]


def _remembers(subject: Subject, batch: Batch) -> bool:
    other = altered_at(batch, 0, batch.steps - 1)
    # equal shapes: without a dependence the bits are equal
    return not torch.equal(subject.logits(batch)[:, -1], subject.logits(other)[:, -1])


def _kept_graph(subject: Subject, batch: Batch) -> list[Finding]:
    """A second, independent call must not reach into the graph of the first."""
    with untouched(subject.module), subject.mode(training=True):
        outputs = _graph_of(subject, lambda: subject.connected_logits(batch))
        if _reaches(subject.connected_logits(batch), outputs):
            measured = "the gradient of a second call flows into the first: the module keeps its state with the graph"
            return [finding("state_not_detached", measured, where=Where(subject.name))]
    return []


def _attached(subject: Subject, batch: Batch, carry: Callable[[Any], Any] | None) -> list[Finding]:
    half = batch.steps // 2
    states: list[Any] = []
    with untouched(subject.module), subject.mode(training=True):

        def first_chunk() -> Tensor:
            logits, state = subject.step(batch.inputs[:, :half], None, batch)
            states.append(state)
            return logits

        outputs = _graph_of(subject, first_chunk)
        logits, _ = subject.step(batch.inputs[:, half:], _carry_on(subject, states[0], carry), batch)
        if not _reaches(logits, outputs):
            return []
    measured = "the gradient of a chunk flows back into the chunk before it through the state"
    return [finding("state_not_detached", measured, where=Where(subject.name, half))]


def _carry_on(subject: Subject, state: Any, carry: Callable[[Any], Any] | None) -> Any:
    if subject.has_contract:  # the memory belongs to the examples, not to the chunk before
        return detached(state[0]), (carry or detached)(state[1])
    return state if carry is None else carry(state)


def detached(state: Any) -> Any:
    """A state cut off its graph: by its own `detach`, else tensor by tensor."""
    return state.detach() if hasattr(state, "detach") else with_tensors(state, iter(tensors_in(state)))


def _graph_of(subject: Subject, run: Callable[[], Tensor]) -> list[Tensor]:
    """Run, and return what the modules returned, with their graph."""
    outputs: list[Tensor] = []

    def keep(_name: str, _args: Any, output: Any) -> None:
        outputs.extend(tensor for tensor in _live(output) if tensor.requires_grad)

    with hooked(subject, keep):
        logits = run()
    return [*outputs, logits]


def _live(value: Any) -> list[Tensor]:
    """The tensors themselves, where `tensors_in` gives copies."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _live(part)] if isinstance(value, tuple | list) else []


def _reaches(logits: Tensor, outputs: list[Tensor]) -> bool:
    if not logits.requires_grad:
        return False
    found = torch.autograd.grad(logits.sum(), outputs, allow_unused=True)
    return any(gradient is not None for gradient in found)


def _unused(subject: Subject, batch: Batch) -> list[Finding]:
    """Every part of the state that changes from step to step must change what comes next."""
    half = batch.steps // 2
    with jittered(subject.module), subject.mode(), torch.no_grad():  # an output layer may start at 0
        _, early = subject.step(batch.inputs[:, : half - 1], None, batch) if half > 1 else (None, None)
        _, state = subject.step(batch.inputs[:, :half], None, batch)
        rest = batch.inputs[:, half:]
        own = subject.step(rest, state, batch)[0]
        if state is None:
            return []
        if torch.equal(own, subject.step(rest, None, batch)[0]):
            return [finding("state_lost", f"the state after {half} tokens changes nothing that follows")]
        lost = _lost_parts(subject, batch, rest, state, own, tensors_in(early))
    if not lost:
        return []
    what = (
        f"part {', '.join(map(str, lost))} of the state's {len(tensors_in(state))} tensors changes nothing that follows"
    )
    return [finding("state_lost", what)]


def _lost_parts(
    subject: Subject, batch: Batch, rest: Tensor, state: Any, own: Tensor, early: list[Tensor]
) -> list[int]:
    """Indices of the state's tensors that change from step to step and yet change nothing."""
    parts, lost = tensors_in(state), []
    for index, part in enumerate(parts):
        is_moving = len(early) != len(parts) or part.shape != early[index].shape or not part.equal(early[index])
        if not is_moving or not part.is_floating_point() or part.numel() == 0:
            continue
        moved = [one + 1.0 + torch.rand_like(one) if place == index else one for place, one in enumerate(parts)]
        logits = subject.step(rest, with_tensors(state, iter(moved)), batch)[0]
        if torch.equal(own, logits):
            lost.append(index)
    return lost


def _reset_ignored(subject: Subject, batch: Batch) -> list[Finding]:
    """Models of the decoder contract: after a reset, tokens before it must not matter."""
    if not subject.has_contract or "reset" not in inspect.signature(subject.model.decode).parameters:
        return []
    half = batch.steps // 2
    before = torch.arange(batch.steps).expand(batch.inputs.shape[:2]) < half
    reset = torch.arange(batch.steps).expand(batch.inputs.shape[:2]) == half
    with untouched(subject.module), subject.mode(), torch.no_grad():
        ways = [batch, batch.with_inputs_altered(before)]
        logits = [subject.decode(way.inputs, None, batch, reset=reset)[0][:, half:] for way in ways]
    size = difference(*logits)
    if size <= SAME_SHAPE:
        return []
    what = f"tokens before a reset change the logits after it by {size:.2g} (relative)"
    return [finding("state_carried", what, where=Where(subject.name, half))]
