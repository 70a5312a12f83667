from __future__ import annotations

import pytest
from table_engine import END, TableEngine, random_tables, table


@pytest.fixture
def early_stop_engine():
    """start {E .5, a .45, b .05}; a {b .95, E .04, a .01}; b {E .95, a .04, b .01}."""
    a, b = 4, 5
    return TableEngine(
        table({1: {END: 0.5, a: 0.45, b: 0.05}, a: {b: 0.95, END: 0.04, a: 0.01}, b: {END: 0.95, a: 0.04, b: 0.01}}, 6)
    )


@pytest.fixture
def twins_engine():
    """start {x .6, y .4}; x {x .33, y .37, E .30}; y {E .90, x .05, y .05}."""
    x, y = 4, 5
    return TableEngine(
        table({1: {x: 0.6, y: 0.4}, x: {x: 0.33, y: 0.37, END: 0.30}, y: {END: 0.90, x: 0.05, y: 0.05}}, 6)
    )


@pytest.fixture(scope="session")
def random_engine():
    """A function: engine of random tables, by seed, number of symbols and number of source kinds."""
    return random_tables
