"""One piece of work, timed once for every line on standard input: how `bench.py` lets programs take turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def serve(work: Callable[[], int]) -> None:
    """Do the work once to warm up, then once a line; answer each with the units of work (words, tokens) a second."""
    work()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        units = work()
        print(units / (time.perf_counter() - start), flush=True)
