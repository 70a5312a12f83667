"""The command line: parses, calls, prints; holds no logic."""

import os

__all__ = ["main"]

MOST_THREADS = 4
"""More make small models slower; `OMP_NUM_THREADS` says otherwise."""


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("OMP_NUM_THREADS", str(min(MOST_THREADS, num_cores())))  # read when numpy and torch load
    from unrolled.commands.app import app

    app()


def num_cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
