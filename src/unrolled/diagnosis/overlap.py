"""Validation examples that occur in the training data."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from unrolled.diagnosis.findings import Finding, Where, finding
from unrolled.text import Pairs

__all__ = ["check_overlap"]


def check_overlap(train: Iterable[Any] | Pairs, valid: Iterable[Any] | Pairs) -> list[Finding]:
    """Whether validation examples occur in the training data.

    Parameters
    ----------
    train, valid : iterable
        Pairs `(source, target)`, or whole texts; anything that is hashable or a sequence of hashables. Also objects
        with `sources` and `targets`, such as `unrolled.text.Pairs`.

    Returns
    -------
    list of Finding
        `overlap` with both counts and the first line concerned (counted from 1, or the object's own `lines`).
    """
    known, lines = _pairs(train)[0], None
    held_out, lines = _pairs(valid)
    seen, sources = set(known), {pair[0] for pair in known}
    shared = [number for number, pair in enumerate(held_out) if pair in seen]
    if not shared:
        return []
    same_source = sum(pair[0] in sources for pair in held_out)
    measured = (
        f"{len(shared)} of {len(held_out)} validation pairs and {same_source} of {len(held_out)} sources occur in the"
        f" training data"
    )
    return [finding("overlap", measured, where=Where("the validation data", line=lines[shared[0]]))]


def _pairs(data: Any) -> tuple[list[tuple[Hashable, ...]], list[int]]:
    if hasattr(data, "sources") and hasattr(data, "targets"):
        items: list[Any] = list(zip(data.sources, data.targets, strict=True))
    else:
        items = list(data)
    lines = [int(line) for line in getattr(data, "lines", range(1, len(items) + 1))]
    return [tuple(map(_frozen, item)) if isinstance(item, tuple | list) else (_frozen(item),) for item in items], lines


def _frozen(part: Any) -> Hashable:
    if isinstance(part, str):
        return part
    if hasattr(part, "tolist"):
        part = part.tolist()
    return tuple(map(_frozen, part)) if isinstance(part, list | tuple) else part
