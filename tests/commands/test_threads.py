"""Threads are chosen before anything that computes is loaded, and a person's choice stays."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from unrolled import commands


@pytest.fixture
def environment(monkeypatch):
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
        "GOMP_SPINCOUNT": "3000",
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
    return int(subprocess.check_output(command, env=os.environ | environment, text=True))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_freed_memory_is_kept_for_the_next_layer_unless_a_person_chose():
    assert faults("kept") < 1000 < faults("as it is")
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="65536") > 1000


def test_cores_are_those_of_this_process():
    assert 1 <= commands.num_cores() <= os.cpu_count()
