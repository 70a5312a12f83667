"""Threads are chosen before anything that computes is loaded, and a person's choice stays."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from unrolled import commands


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setattr(commands, "keep_memory", lambda: None)  # of the whole test process
    monkeypatch.setattr(os, "environ", {})
    return os.environ


def chosen_by_us(environment):
    """Without what pytest writes there by itself."""
    return {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "2"), (4, "4"), (64, "4")])
def test_small_models_take_few_threads(environment, monkeypatch, cores, threads):
    monkeypatch.setattr(commands, "num_cores", lambda: cores)
    commands.settle_libraries()
    assert chosen_by_us(environment) == {
        "OMP_NUM_THREADS": threads,
        "GOMP_SPINCOUNT": "30000",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
        "PYDANTIC_DISABLE_PLUGINS": "__all__",
    }


def test_what_a_person_chose_stays(environment):
    chosen = {
        "OMP_NUM_THREADS": "7",
        "OMP_WAIT_POLICY": "ACTIVE",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "9",
        "PYDANTIC_DISABLE_PLUGINS": "logfire-plugin",
    }
    environment.update(chosen)
    commands.settle_libraries()
    assert chosen_by_us(environment) == chosen


FAULTS = """
import resource, sys
from unrolled.commands import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
bytearray(64 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(64 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments, **environment):
    """Pages that the system gives for 64 MB after another one of that size was freed."""
    command = [sys.executable, "-c", FAULTS, *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    return int(subprocess.check_output(command, env=inherited | environment, text=True))


def has_small_pages():
    """Whether this is glibc on a system that gives memory page by page."""
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    is_glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")
    return is_glibc and not (huge.exists() and "[always]" in huge.read_text())


@pytest.mark.skipif(not has_small_pages(), reason="not glibc, or huge pages")
def test_freed_memory_is_kept_for_the_next_layer_unless_a_person_chose():
    assert faults("kept") < faults("as it is") / 10
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="65536") > 1000


TRIM, MMAP = -1, -3  # of the C library's malloc.h


@pytest.mark.parametrize("largest", [1 << 40, 1 << 25, 0])
def test_limits_of_the_heap_are_set_together_or_not_at_all(monkeypatch, largest):
    """glibc before 2.35 refuses more than 32 MB; with the other limit alone every block would be given back."""
    calls = []

    def mallopt(option, value):
        is_taken = option == TRIM or value <= largest
        calls.extend([option] * is_taken)
        return int(is_taken)

    monkeypatch.setattr(os, "name", "posix")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    commands.keep_memory()
    assert calls == ([MMAP, TRIM] if largest else [])


def test_cores_are_those_of_this_process():
    assert 1 <= commands.num_cores() <= os.cpu_count()
