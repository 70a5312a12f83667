"""What training shows, in a terminal and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from unrolled.commands import progress
from unrolled.commands.progress import RunningMean, TrainingProgress, clock
from unrolled.training.events import (
    DataPrepared,
    Evaluated,
    Planned,
    StepSkipped,
    StepTaken,
    TrainingEnded,
    TrainingStarted,
    Warned,
)

STARTED = TrainingStarted(
    0,
    total_steps=None,
    steps_per_epoch=10,
    num_parameters=1234567,
    num_pairs=300,
    device="cpu",
    threads=2,
    matrix_mode="onednn",
)


def step(number, seconds, *, loss=2.0, tokens=1000, left=60.0):
    return StepTaken(
        number,
        total_steps=100,
        epoch=1,
        loss=loss,
        gradient_norm=1.0,
        learning_rate=1e-3,
        num_labels=10,
        num_tokens=tokens,
        seconds=seconds,
        seconds_left=left,
    )


def evaluated(**changes):
    values = {
        "epoch": 1,
        "loss": 1.5,
        "metric": "error_rate",
        "value": 0.25,
        "is_best": True,
        "num_labels": 9,
        "seconds": 1.0,
    }
    return Evaluated(10, **{**values, **changes})


def shown(events, *, is_terminal=False):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100, highlight=False)
    with TrainingProgress(console) as listener:
        for event in events:
            listener(event)
    return console.file.getvalue()


def test_plain_lines_are_few_and_say_everything(monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 10.0)
    text = shown(
        [
            STARTED,
            Planned(3, total_steps=100, seconds_per_step=0.05, seconds_per_evaluation=1.0),
            evaluated(),
            *(step(n, n / 2) for n in range(1, 50)),
        ]
    )
    assert text.splitlines() == [
        "1,234,567 parameters, 300 examples, 10 steps an epoch; cpu, 2 threads, matrix products: onednn",
        "the time budget is 100 steps of 50 ms",
        "step 10, epoch 1: dev loss 1.5000, error rate 25.00 %, best so far",
        "step 20 of 100 · epoch 1 · loss 2.000 · dev 25.0 % · 2,000 tokens/s · 1:00 left",
        "step 40 of 100 · epoch 1 · loss 2.000 · dev 25.0 % · 2,000 tokens/s · 1:00 left",
    ]


def test_a_terminal_has_a_bar_that_fits_its_width():
    text = shown([STARTED, evaluated(), *(step(n, n / 2) for n in range(1, 101))], is_terminal=True)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "\n")
    last = [line for line in plain.splitlines() if "100%" in line][-1]
    assert "100% epoch 1 · loss 2.000 · dev 25.0 % · 2,000 tokens/s · 1:00 left" in last
    assert "…" not in last


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (DataPrepared(0, lines=("train: 3 pairs", "note: [odd] markup")), "train: 3 pairs\nnote: [odd] markup"),
        (evaluated(is_best=False, metric="loss", value=1.5), "step 10, epoch 1: dev loss 1.5000"),
        (
            evaluated(is_best=False, metric="loss", value=1.5, num_characters=18),
            "step 10, epoch 1: dev loss 1.5000 (perplexity 4.48, 1.082 bits a character)",
        ),
        (
            evaluated(weights="average", is_best=False),
            "step 10, epoch 1: dev loss 1.5000, error rate 25.00 % (averaged weights)",
        ),
        (evaluated(loss=None, value=None, is_best=False), "step 10, epoch 1: dev no labels to score"),
        (
            StepSkipped(
                7, reason="non-finite gradient", lines=(3, 9), parameter="decoder.output.weight", in_a_row=1, total=2
            ),
            "step 7 skipped: non-finite gradient, first in decoder.output.weight; lines 3, 9; 2 so far",
        ),
        (Warned(0, "threads 2 -> 1"), "note: threads 2 -> 1"),
        (
            TrainingEnded(90, reason="over_budget", best_step=10, best_value=0.2, seconds=3725.0),
            "training ended (over budget) after 90 steps, 1:02:05",
        ),
    ],
)
def test_events_in_words(event, line):
    assert shown([event]) == f"{line}\n"


def test_a_mean_starts_with_its_first_value_and_forgets():
    mean = RunningMean()
    mean.add(10.0)
    assert mean.value == pytest.approx(10.0)
    for _ in range(1000):
        mean.add(2.0)
    assert mean.value == pytest.approx(2.0, abs=1e-6)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00")])
def test_clock(seconds, text):
    assert clock(seconds) == text
