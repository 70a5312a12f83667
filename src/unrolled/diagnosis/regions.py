"""When two runs agree: tolerances, and the entries of a tensor in which they must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "ROUNDING", "SAME_SHAPE", "EarlierSteps", "Everywhere", "OtherRows", "RealPositions", "Region", "difference",
]  # fmt: skip

SAME_SHAPE = 1e-6
"""Largest relative difference of two runs of equal shapes: they do the same arithmetic, so this is generous."""
ROUNDING = 1e-5
"""Largest relative difference of two ways to compute one thing in float32 (about 100 units of the last place)."""


def difference(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference, relative to the largest magnitude; infinite where only one is NaN."""
    if one.numel() == 0:
        return 0.0
    one, other = (_real(tensor.detach()).double() for tensor in (one, other))
    gap = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, (one - other).abs())
    finite = torch.cat([one.flatten(), other.flatten()]).nan_to_num(0.0, 0.0, 0.0).abs()
    return float(gap.nan_to_num(torch.inf).max() / finite.max().clamp(min=1e-30))


def _real(tensor: Tensor) -> Tensor:
    """Complex numbers, such as the turns of rotary positions, as pairs of real ones."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


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
        """Along each axis of length B; where there is none, of a multiple of it, folded either way."""
        shape, found = layout.shape, []
        plain = [axis for axis, size in enumerate(shape) if size == self.rows]
        folded = [axis for axis, size in enumerate(shape) if size and size % self.rows == 0 and not plain]
        for axis in plain + folded:
            place = torch.arange(shape[axis])
            ways = [place % self.rows, place // (shape[axis] // self.rows)][: 1 if plain else 2]
            found += [_along(shape, axis, way != self.row) for way in ways]
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
