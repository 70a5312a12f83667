"""Parts of an evaluation as lines for people."""

from __future__ import annotations

from collections.abc import Sequence

from unrolled.metrics.edits import Confusion
from unrolled.metrics.parts import Group, Item

__all__ = ["confusion_lines", "group_lines", "item_lines", "item_texts"]


def group_lines(title: str, groups: Sequence[Group]) -> list[str]:
    """Share of wrong predictions in each part."""
    if not groups:
        return []
    width = max(len(group.name) for group in groups)
    return [
        "",
        f"{title}: share wrong",
        *(
            f"  {group.name:>{width}}  {100 * group.error_rate:6.2f} %  {group.num_wrong} of {group.num_sources}"
            for group in groups
        ),
    ]


def confusion_lines(found: Sequence[Confusion]) -> list[str]:
    """Which symbols are taken for which."""
    if not found:
        return []
    width = len(str(found[0].count))
    return ["", "most frequent edits (answer → prediction)", *(f"  {item.count:>{width}} × {item}" for item in found)]


def item_texts(items: Sequence[Item]) -> list[tuple[str, str]]:
    """Prediction and nearest answer of each; symbols stand apart where one of them is longer than a character."""
    symbols = {symbol for item in items for symbol in item.prediction + item.nearest}
    space = "" if all(len(symbol) == 1 for symbol in symbols) else " "
    return [(space.join(item.prediction), space.join(item.nearest)) for item in items]


def item_lines(items: Sequence[Item]) -> list[str]:
    """Predictions beside the nearest answers."""
    if not items:
        return []
    texts = [[side or "(empty)" for side in sides] for sides in item_texts(items)]
    return [
        "",
        "worst (edits, line, source: prediction | nearest answer)",
        *(
            f"  {item.edits}  {item.line}  {item.source}: {prediction} | {nearest}"
            for item, (prediction, nearest) in zip(items, texts, strict=True)
        ),
    ]
