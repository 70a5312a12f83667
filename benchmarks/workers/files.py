"""What several programs read, under build/bench; `bench.py` has it written once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "bench"
TRAIN, DEV, WORDS, MANY = (FOLDER / f"{name}.tsv" for name in ("train", "dev", "words", "many"))
"""Pairs to train on, to choose weights by, and to decode; a million pairs."""
TEXT_FILE = FOLDER / "text.txt"
"""Running text of 65 different characters."""


def read_columns(path: Path) -> tuple[list[str], list[str]]:
    """Read sources and targets of pairs."""
    pairs = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    sources, targets = map(list, zip(*pairs, strict=True))
    return sources, targets


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file unless it is there, all or nothing."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
    partial.rename(path)


def write_pairs(path: Path, pairs: Iterable[Sequence[str]]) -> None:
    """Write two columns."""
    write_lines(path, map("\t".join, pairs))
