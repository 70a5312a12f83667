"""Threads are chosen before anything that computes is loaded, and a person's choice stays."""

from __future__ import annotations

import os

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


def test_cores_are_those_of_this_process():
    assert 1 <= commands.num_cores() <= os.cpu_count()
