"""The examples run, learn, and say so."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def losses(text, unit):
    return [float(value) for value in re.findall(rf"([\d.]+) {unit}", text)]


def test_reversing_is_learnt(capsys):
    example = runpy.run_path(str(EXAMPLES / "numpy_reverse.py"))
    example["train"](90, batch_size=32, learning_rate=1e-2)
    curve = losses(capsys.readouterr().out, "nats")
    assert len(curve) >= 15
    assert curve[-1] < 0.6 * curve[0]


def test_the_language_model_learns(capsys):
    example = runpy.run_path(str(EXAMPLES / "numpy_language_model.py"))
    ids, alphabet = example["read_text"]()
    example["train"](ids[:20_000], len(alphabet), 40)
    curve = losses(capsys.readouterr().out, "bits")
    assert curve[-1] < 0.9 * curve[0]


def test_three_symbols_in_a_row_are_all_a_trigram_sees():
    bits = runpy.run_path(str(EXAMPLES / "numpy_language_model.py"))["trigram_bits"]
    rng = np.random.default_rng(0)
    cycle = np.arange(3000) % 5
    assert bits(cycle, cycle[:500], 5) < 0.01
    random = rng.integers(0, 5, 60_000)
    assert abs(bits(random[:50_000], random[50_000:], 5) - np.log2(5)) < 0.01
