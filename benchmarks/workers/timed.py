"""How programs take turns: each answers a number for every line on standard input (see `turns.py`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def answer(number: float) -> None:
    """Send a number; libraries may print other lines beside it."""
    print("answer", number, flush=True)


def is_asked() -> bool:
    """Wait for the next turn; no more of them end the program."""
    return bool(sys.stdin.readline())


def serve(measure: Callable[[], float]) -> None:
    """Measure once a turn. The first answer, before any turn, only says that the program is ready."""
    answer(0.0)
    while is_asked():
        answer(measure())


def serve_rate(work: Callable[[], float]) -> None:
    """Do the work once to warm up, then once a turn; answer with its units (words, tokens) a second."""
    work()
    serve(lambda: rate(work))


def rate(work: Callable[[], float]) -> float:
    """Units of work a second, of one repetition."""
    start = time.perf_counter()
    units = work()
    return units / (time.perf_counter() - start)
