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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from unrolled.diagnosis.adapter import Subject
from unrolled.diagnosis.batch import Batch

__all__ = [
    "ROUNDING", "SAME_SHAPE", "Call", "EarlierSteps", "Everywhere", "OtherRows", "RealPositions", "Region", "Trace",
    "difference", "first_suspect", "hooked", "record", "responsible", "tensors_in", "with_tensors",
]  # fmt: skip

SAME_SHAPE = 1e-6
"""Largest relative difference of two runs of equal shapes: they do the same arithmetic, so this is generous."""
ROUNDING = 1e-5
"""Largest relative difference of two ways to compute one thing in float32 (about 100 units of the last place)."""


def difference(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference, relative to the largest magnitude; infinite where only one is NaN."""
    if one.numel() == 0:
        return 0.0
    one, other = one.detach().double(), other.detach().double()
    gap = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, (one - other).abs())
    finite = torch.cat([one.flatten(), other.flatten()]).nan_to_num(0.0, 0.0, 0.0).abs()
    return float(gap.nan_to_num(torch.inf).max() / finite.max().clamp(min=1e-30))


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


# --- which entries must agree ----------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """A tensor's shape, and which of its module's calls it belongs to."""

    shape: torch.Size
    call: int
    calls: int


class Region:
    """The entries of a tensor that must agree between two runs."""

    def masks(self, layout: Layout) -> list[Tensor]:
        """Masks that broadcast to the shape, True = must agree; one for each way to read the axes, none if unknown."""
        raise NotImplementedError

    def restored(self, before: Tensor, after: Tensor, call: int = 0, calls: int = 1) -> Tensor | None:
        """`after` with the region as in `before`, read in the way that changes least; none where it is unknown."""
        crop = _crop(after, before)
        if crop is None:
            return None
        ways = [
            torch.where(mask.to(crop.device), before, crop) for mask in self.masks(Layout(before.shape, call, calls))
        ]
        if not ways:
            return None
        best = min(ways, key=lambda way: difference(way, crop))
        patched = after.clone()
        _crop(patched, before).copy_(best)  # type: ignore[union-attr]
        return patched

    def differs(self, before: list[Tensor], after: list[Tensor], call: int = 0, calls: int = 1) -> bool:
        """Whether any of the tensors differs in the region by more than rounding."""
        for one, other in zip(before, after, strict=False):
            patched = self.restored(one, other, call, calls)
            tolerance = SAME_SHAPE if one.shape == other.shape else ROUNDING
            if patched is not None and difference(patched, other) > tolerance:
                return True
        return False


def _crop(after: Tensor, before: Tensor) -> Tensor | None:
    """`after` cut to the shape of `before`; none where an axis is shorter or the number of axes differs."""
    if after.dim() != before.dim() or any(a < b for a, b in zip(after.shape, before.shape, strict=True)):
        return None
    return after[tuple(slice(size) for size in before.shape)]


def _along(shape: torch.Size, axis: int, values: Tensor) -> Tensor:
    return values.reshape([-1 if place == axis else 1 for place in range(len(shape))])


@dataclass(frozen=True)
class Everywhere(Region):
    """Every entry of every tensor."""

    def masks(self, layout: Layout) -> list[Tensor]:
        """One mask that is True everywhere."""
        return [torch.ones([1] * len(layout.shape), dtype=torch.bool)]


@dataclass(frozen=True)
class EarlierSteps(Region):
    """Steps 0..last of T; a module that is called once a step counts its calls instead."""

    last: int
    steps: int
    rows: int

    def masks(self, layout: Layout) -> list[Tensor]:
        """Along each axis of length T, or B · T in either order."""
        shape = layout.shape
        keep = torch.arange(self.steps) <= self.last
        flat = [keep.repeat(self.rows), keep.repeat_interleave(self.rows)] if self.rows > 1 else []
        found = [_along(shape, axis, keep) for axis, size in enumerate(shape) if size == self.steps]
        found += [_along(shape, axis, way) for axis, size in enumerate(shape) for way in flat if size == len(way)]
        if not found and layout.calls == self.steps:
            return [torch.full([1] * len(shape), layout.call <= self.last)]
        return found


@dataclass(frozen=True)
class OtherRows(Region):
    """All examples of a batch of B but one."""

    row: int
    rows: int

    def masks(self, layout: Layout) -> list[Tensor]:
        """Along each axis of length B or a multiple of it, folded either way."""
        found = []
        for axis, size in enumerate(layout.shape):
            if size and size % self.rows == 0:
                place = torch.arange(size)
                ways = [place // (size // self.rows), place % self.rows][: 1 if size == self.rows else 2]
                found += [_along(layout.shape, axis, way != self.row) for way in ways]
        return found


@dataclass(frozen=True)
class RealPositions(Region):
    """Real source positions; a tensor without a source axis must agree everywhere.

    With `is_grown` the second run has more source columns, so a tensor of unchanged shape has no source axis.
    """

    real: Tensor  # (B, S)
    is_grown: bool = False

    def restored(self, before: Tensor, after: Tensor, call: int = 0, calls: int = 1) -> Tensor | None:
        """As for every region; the whole tensor where its shape shows that it has no source axis."""
        if self.is_grown and before.shape == after.shape:
            return before
        return super().restored(before, after, call, calls)

    def masks(self, layout: Layout) -> list[Tensor]:
        """For each pair of axes of lengths B and S, or one of length B · S in either order."""
        (B, S), shape, found = self.real.shape, layout.shape, []
        for source, size in enumerate(shape):
            for batch in (axis for axis, length in enumerate(shape) if length == B and axis != source and size == S):
                sizes = [B if axis == batch else S if axis == source else 1 for axis in range(len(shape))]
                found.append((self.real if batch < source else self.real.T).reshape(sizes))
            if size == B * S:
                found += [_along(shape, source, way.flatten()) for way in (self.real, self.real.T)]
        if not found and layout.calls == S and shape[:1] == (B,):
            return [_along(shape, 0, self.real[:, layout.call])]
        return found or [torch.ones([1] * len(shape), dtype=torch.bool)]


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
