"""The command line: parses, calls, prints; holds no logic."""

import os

__all__ = ["keep_memory", "main", "num_cores", "settle_libraries"]

MOST_THREADS = 4
"""More make small models slower."""
SPINS = 30_000
"""Turns that a thread waits awake for the others, about 100 µs; the usual 300,000 starve them on a busy machine."""

KERNELS = 256
"""Matrix products that oneDNN keeps prepared, one a shape; its usual 1,024 hold up to a gigabyte."""

KEPT = 1 << 28
"""Bytes of the largest block, and of the free end of the heap, that are kept for the next layer. The C library's own
limits give large activations back to the system, which clears them anew, page by page, for the next one."""
MOST_OF_OLD = 1 << 25
"""The most that glibc before 2.35 keeps."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MALLOC = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}


def main() -> None:
    """Run the command line."""
    settle_libraries()
    from unrolled.commands.app import app

    app()


def settle_libraries() -> None:
    """Choose threads and memory, most by variables that libraries read as they load; a person's choice stays."""
    os.environ.setdefault("OMP_NUM_THREADS", str(min(MOST_THREADS, num_cores())))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    # Looking for plugins reads the metadata of every installed package, 12 ms of each start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    keep_memory()


def keep_memory() -> None:
    """Have the C library keep what layers allocate and free again and again, where it is glibc."""
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if set_option is None or _MALLOC.intersection(os.environ):
        return
    # The second one ends that the limits adapt by themselves, so it must not stand alone.
    if set_option(_MMAP_THRESHOLD, KEPT) or set_option(_MMAP_THRESHOLD, MOST_OF_OLD):
        set_option(_TRIM_THRESHOLD, KEPT)


def num_cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
