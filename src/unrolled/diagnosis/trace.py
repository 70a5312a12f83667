"""Which module is responsible: compare what every module returned in two runs.

Two batches differ only where a difference must not matter (later steps, other rows, padding). A `Region` says which
entries of a tensor must therefore agree. The culprit is a module whose inputs agree there and whose output does not,
and whose output, put back to what it was, changes the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from unrolled.diagnosis.adapter import Subject
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.regions import SAME_SHAPE, Region, difference

__all__ = ["Call", "Trace", "first_suspect", "hooked", "record", "responsible", "tensors_in", "with_tensors"]

# --- what every module returned --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of one module: its name, which of its calls it was, and the tensors that went in and out."""

    module: str
    index: int
    inputs: list[Tensor]
    outputs: list[Tensor]

    @property
    def key(self) -> tuple[str, int]:
        """What pairs the calls of two runs."""
        return self.module, self.index


@dataclass(frozen=True)
class Trace:
    """All calls of a run in the order in which they returned, and the logits."""

    calls: list[Call]
    logits: Tensor

    def counts(self) -> Counter[str]:
        """How often each module was called."""
        return Counter(call.module for call in self.calls)


Patch = Callable[[Call], list[Tensor] | None]


def record(subject: Subject, run: Callable[[], Tensor], *, patch: Patch | None = None) -> Trace:
    """Call `run`, which returns logits, and keep what modules were given and returned; `patch` may replace outputs."""
    calls: list[Call] = []
    seen: Counter[str] = Counter()

    def keep(name: str, args: Any, output: Any) -> Any:
        call = Call(name, seen[name], tensors_in(args), tensors_in(output))
        seen[name] += 1
        calls.append(call)
        replaced = None if patch is None else patch(call)
        return None if replaced is None else with_tensors(output, iter(replaced))

    with hooked(subject, keep):
        logits = run().detach()
    return Trace(calls, logits)


@contextmanager
def hooked(subject: Subject, keep: Callable[[str, Any, Any], Any]) -> Iterator[None]:
    """Call `keep(name, inputs, output)` after every module's forward; what it returns replaces the output."""
    modules = [] if subject.module is None else list(subject.module.named_modules())

    def hook_of(name: str) -> Callable[[nn.Module, Any, Any, Any], Any]:
        return lambda _, args, kwargs, output: keep(name, (args, kwargs), output)

    handles: list[Any] = []
    try:
        for name, module in modules:
            handles.append(module.register_forward_hook(hook_of(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def tensors_in(value: Any) -> list[Tensor]:
    """Copies of all tensors in nested containers, packed sequences padded to `(B, T, ...)`."""
    if isinstance(value, PackedSequence):
        return [pad_packed_sequence(value, batch_first=True)[0].detach()]
    if isinstance(value, Tensor):
        return [value.detach().clone()]
    return [tensor for part in _parts(value) for tensor in tensors_in(part)]


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return []


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same containers around other tensors (packed sequences keep their own)."""
    if isinstance(value, PackedSequence):
        next(tensors)
        return value
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(part, tensors) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(with_tensors(part, tensors) for part in value)
    if isinstance(value, dict):
        return {name: with_tensors(part, tensors) for name, part in value.items()}
    for _ in tensors_in(value):
        next(tensors)
    return value


# --- who is responsible ----------------------------------------------------------------------------------------------


def responsible(
    subject: Subject,
    before: Batch,
    after: Batch,
    region: Region,
    *,
    part: Callable[[Tensor], Tensor],
    seeds: tuple[int, int] = (0, 0),
    limit: int = 12,
) -> list[str]:
    """Names of the modules that make `part` of the logits differ, the first one first.

    Suspects are put back to their output of the first run one by one; the one whose repair changes the logits is
    responsible. Where no submodule is, the model's own `forward` is named.
    """
    clean = record(subject, lambda: subject.logits(before, seed=seeds[0]))
    counts, originals = clean.counts(), {call.key: call for call in clean.calls}
    tried: set[tuple[str, int]] = set()
    named: list[str] = []

    def patch(call: Call) -> list[Tensor] | None:
        return _repair(originals[call.key], call, region, counts) if call.key in tried else None

    def again() -> Tensor:
        return subject.logits(after, seed=seeds[1])

    dirty = record(subject, again)
    for _ in range(limit):
        suspect = first_suspect(clean, dirty, region, tried)
        if suspect is None or difference(part(clean.logits), part(dirty.logits)) <= SAME_SHAPE:
            break
        tried.add(suspect.key)
        repaired = record(subject, again, patch=patch)
        if difference(repaired.logits, dirty.logits) > SAME_SHAPE:
            named.append(suspect.module)
        dirty = repaired
    names = [name or subject.name for name in dict.fromkeys(named)]
    return names or [subject.name]


def _repair(original: Call, call: Call, region: Region, counts: Counter[str]) -> list[Tensor]:
    pairs = zip(original.outputs, call.outputs, strict=True)
    ways = [(region.restored(one, other, call.index, counts[call.module]), other) for one, other in pairs]
    return [other if patched is None else patched for patched, other in ways]


def first_suspect(clean: Trace, dirty: Trace, region: Region, tried: Collection[tuple[str, int]] = ()) -> Call | None:
    """The first call with equal inputs and a changed output in a region; inner modules return before outer ones."""
    counts, originals = clean.counts(), {call.key: call for call in clean.calls}
    for call in dirty.calls:
        original = originals.get(call.key)
        if original is None or call.key in tried or len(original.outputs) != len(call.outputs):
            continue
        place = (call.index, counts[call.module])
        if region.differs(original.outputs, call.outputs, *place) and not region.differs(
            original.inputs, call.inputs, *place
        ):
            return call
    return None
