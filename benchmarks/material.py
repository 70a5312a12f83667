"""Writes what the programs read: words of the CMU Pronouncing Dictionary, a million pairs, a text."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterator

from workers.files import DEV, MANY, TEXT_FILE, TRAIN, WORDS, write_lines, write_pairs

from unrolled.commands.cmudict import read_cmudict

NUM_TRAIN, NUM_DEV, NUM_WORDS, NUM_MANY = 6400, 64, 12_000, 1_000_000
NUM_CHARACTERS = 100_000
SYMBOLS = string.ascii_letters + string.digits + " \n."


def write_material() -> None:
    """Write all files that are not there yet; the same on every machine that has the same dictionary."""
    if all(path.exists() for path in (TRAIN, DEV, WORDS, MANY, TEXT_FILE)):
        return
    pairs = [(word, phones) for word, variants in read_cmudict().items() for phones in variants]
    chance = random.Random(0)
    drawn = chance.sample(pairs, NUM_TRAIN + NUM_DEV + NUM_WORDS)
    write_pairs(TRAIN, drawn[:NUM_TRAIN])
    write_pairs(DEV, drawn[NUM_TRAIN : NUM_TRAIN + NUM_DEV])
    write_pairs(WORDS, drawn[NUM_TRAIN + NUM_DEV :])
    write_pairs(MANY, itertools.islice(lengthened(pairs), NUM_MANY))
    text = "".join(chance.choices(SYMBOLS, k=NUM_CHARACTERS))
    write_lines(TEXT_FILE, text.splitlines())


def lengthened(pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The dictionary again and again, each time with another letter and phone at the end of every word."""
    for letter in string.ascii_lowercase:
        for word, phones in pairs:
            yield word + letter, f"{phones} {letter.upper()}"
