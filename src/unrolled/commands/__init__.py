"""The command line: parses, calls, prints; holds no logic."""

import os

__all__ = ["main"]

MOST_THREADS = 4
"""More make small models slower."""
SPINS = 3000
"""Turns that a thread waits awake for the others, about 10 µs; the usual 300,000 starve them on a busy machine."""

KERNELS = 256
"""Matrix products that oneDNN keeps prepared, one a shape; its usual 1,024 hold up to a gigabyte."""


def main() -> None:
    """Run the command line."""
    settle_libraries()
    from unrolled.commands.app import app

    app()


def settle_libraries() -> None:
    """Choose threads and memory by variables that libraries read as they load; a person's choice stays."""
    os.environ.setdefault("OMP_NUM_THREADS", str(min(MOST_THREADS, num_cores())))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    # Looking for plugins reads the metadata of every installed package, 12 ms of each start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def num_cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
