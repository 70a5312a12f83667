"""Two processes on one machine, started the way a person starts them."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from unrolled.text import EOS, PAD, Examples, Ragged, collate

SETTINGS = [
    "model.encoder.hidden_size=8",
    "model.decoder.hidden_size=8",
    "model.encoder.dropout=0",
    "model.decoder.dropout=0",
    "training.max_epochs=none",
    "training.max_steps=12",
    "training.max_batch_size=7",
    "training.evaluate_every=6",
]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(), check=False)


def losses(folder):
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {event["step"]: event["loss"] for event in events if event["event"] == "StepTaken"}, [
        event["loss"] for event in events if event["event"] == "Evaluated"
    ]


def test_parts_of_a_batch_are_the_batch():
    rows = [[4, 5, 6], [7], [8, 4], [5, 5, 5, 5]]
    examples = Examples(
        Ragged.from_rows([[*row, EOS] for row in rows]),
        Ragged.from_rows([[*row[:2], EOS] for row in rows]),
        np.arange(4),
    )
    batch = collate(examples, np.arange(4))
    parts = [batch.part(rank, 3) for rank in range(3)]
    assert [part.rows.tolist() for part in parts] == [[0, 3], [1], [2]]
    assert sum(part.num_labels for part in parts) == batch.num_labels
    assert sum(part.num_tokens for part in parts) == batch.num_tokens
    assert parts[1].source.tolist() == [[7, EOS]]
    assert parts[1].labels.tolist() == [[7, EOS]]
    assert (parts[0].labels != PAD).all()
    assert batch.part(4, 5).num_labels == 0


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path, make_pairs):
    """43 pairs in batches of 7: the last batch of an epoch has one row for two processes."""
    pairs = make_pairs(tmp_path / "words.tsv", count=48)
    arguments = ["-m", "unrolled", "train", str(pairs), "--preset", "tiny", *SETTINGS]
    alone = run(sys.executable, *arguments, "--out", str(tmp_path / "one"))
    assert alone.returncode == 0, alone.stderr
    together = run(*TORCHRUN, *arguments, "--out", str(tmp_path / "two"))
    assert together.returncode == 0, together.stderr
    assert together.stdout.count("the run is in") == 1
    (one, one_dev), (two, two_dev) = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert list(one) == list(two) == list(range(1, 13))
    np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=1e-5)
    np.testing.assert_allclose(two_dev, one_dev, rtol=1e-5)


TRAINING = """
import sys
from unrolled.presets import get
from unrolled.settings import resolve
from unrolled.training import train

pairs, out, *settings = sys.argv[1:]
if settings:
    train(pairs, config=resolve(get("tiny"), overrides=settings), out=out)
else:
    train(resume=out)
"""
"""Without the command's probe, which may choose another matrix mode for each run."""


@pytest.mark.slow
def test_an_interrupt_ends_all_and_a_resumed_run_is_exact(tmp_path, make_pairs):
    script, pairs = tmp_path / "training.py", make_pairs(tmp_path / "words.tsv", count=60)
    script.write_text(TRAINING)
    steps = [*SETTINGS, "training.max_steps=60", "model.encoder.dropout=0.2"]
    command = [*TORCHRUN, str(script), str(pairs)]
    whole = run(*command, str(tmp_path / "whole"), *steps)
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "cut"
    child = subprocess.Popen([*command, str(folder), *steps], env=environment(), start_new_session=True)
    while not (folder / "metrics.jsonl").is_file() or '"step": 20' not in (folder / "metrics.jsonl").read_text():
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) != 0
    assert max(losses(folder)[0]) < 60
    resumed = run(*command, str(folder))
    assert resumed.returncode == 0, resumed.stderr
    assert losses(folder) == losses(tmp_path / "whole")


FAILING = """
import os, sys
from unrolled.presets import get
from unrolled.training import train

def fail(event):
    if event.step == 3:
        raise ValueError("rank 0 cannot go on")

train(sys.argv[1], config=get("tiny"), out=sys.argv[2], listeners=[fail])
"""


@pytest.mark.slow
def test_one_that_fails_ends_the_others_with_its_error(tmp_path, make_pairs):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    start = time.monotonic()
    ended = run(*TORCHRUN, str(script), str(make_pairs(tmp_path / "words.tsv")), str(tmp_path / "run"))
    assert ended.returncode != 0
    assert "rank 0 cannot go on" in ended.stderr
    assert time.monotonic() - start < 60
