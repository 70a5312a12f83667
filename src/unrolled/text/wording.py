"""Numbers and lists in messages."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "listed"]

MOST_LISTED = 5


def counted(number: int, noun: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(lines: Sequence[int]) -> str:
    """`line 3`, `lines 3, 7`, and no more than the first few of many."""
    shown = ", ".join(str(line) for line in lines[:MOST_LISTED])
    more = f" and {len(lines) - MOST_LISTED} more" if len(lines) > MOST_LISTED else ""
    return f"line{'s' * (len(lines) > 1)} {shown}{more}"
