"""Whole sessions: what a run folder holds, arguments, little data, seeds."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sessions import CrashError, Recorder, assert_same_runs, crash_at, losses_of, weights_of

from unrolled import parameters
from unrolled.config import Config, Data, Optimizer
from unrolled.errors import ConfigError, DataError
from unrolled.parameters import Sizes, inventory
from unrolled.runs import Run
from unrolled.text import Codec
from unrolled.training import train
from unrolled.training.events import CheckpointSaved, DataPrepared, Evaluated, StepTaken, TrainingStarted


def test_a_run_folder_has_all_that_is_needed(whole, pairs, config):
    path, outcome, seen = whole
    run = Run.open(path)
    assert outcome.reason == "completed"
    assert run.config == config
    assert run.data().train.path == str(pairs)
    assert run.data().dev is None
    assert len(run.data().dev_lines) == 20
    assert run.environment().threads == torch.get_num_threads()
    assert run.environment().matrix_mode == "default"
    assert [step for step, _ in losses_of(path)] == list(range(1, 41))
    assert seen[0].lines == tuple(seen.of(DataPrepared)[0].lines)
    assert "180 pairs" in seen[0].lines[0]
    assert [event.step for event in seen.of(CheckpointSaved)] == [17, 34, 40]
    steps_per_epoch = seen.of(TrainingStarted)[0].steps_per_epoch
    assert 17 % steps_per_epoch != 0, "the state that tests resume from lies inside an epoch"


def test_the_stored_weights_are_those_chosen(whole):
    _, outcome, seen = whole
    averaged = seen.of(Evaluated)[-1]
    assert averaged.weights == "average"
    assert outcome.best_value == min(event.value for event in seen.of(Evaluated))


def test_a_given_dev_file_is_part_of_the_run(make_pairs, make_config, tmp_path):
    pairs, dev = make_pairs(tmp_path / "pairs.tsv", 30), make_pairs(tmp_path / "dev.tsv", 10, seed=1)
    config = make_config(max_steps=6, save_every=3)
    with pytest.raises(CrashError):
        train(pairs, dev=dev, config=config, out=tmp_path / "run", listeners=[crash_at(4)], device="cpu")
    assert Run.open(tmp_path / "run").data().dev.path == str(dev)
    content = dev.read_text()
    dev.write_text("")
    with pytest.raises(DataError, match=r"dev\.tsv: changed"):
        train(resume=tmp_path / "run", device="cpu")
    dev.write_text(content)
    assert train(resume=tmp_path / "run", device="cpu").reason == "completed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a file of pairs and a folder"),
        ({"train_path": "x.tsv"}, "needs a file of pairs and a folder"),
        ({"resume": "run", "out": "other"}, "resume takes settings and folder from the run"),
        ({"resume": "run", "preset": "tiny"}, "resume takes settings and folder from the run"),
        ({"train_path": "x", "out": "y", "preset": "tiny", "config": Config()}, "not from both"),
        ({"train_path": "x", "out": "y", "preset": "tinny"}, "did you mean tiny"),
    ],
)
def test_contradictions(arguments, message):
    with pytest.raises(ConfigError, match=message):
        train(**arguments)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device cuda is not there; PyTorch sees: .*cpu"):
        train("x.tsv", out="y", device="cuda")


def test_a_run_is_not_overwritten_unless_asked(pairs, make_config, tmp_path):
    config = make_config(max_steps=1)
    train(pairs, config=config, out=tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="holds a run already"):
        train(pairs, config=config, out=tmp_path / "run", device="cpu")
    train(pairs, config=config, out=tmp_path / "run", overwrite=True, device="cpu")
    assert [step for step, _ in losses_of(tmp_path / "run")] == [1]


def test_a_single_pair_is_learnt(make_config, tmp_path):
    (tmp_path / "one.tsv").write_text("a\tb\n")
    config = make_config(
        dropout=0.0, max_steps=80, label_smoothing=0.0, optimizer=Optimizer(learning_rate=0.05), evaluate_every=40
    )
    seen = Recorder()
    train(tmp_path / "one.tsv", config=config, out=tmp_path / "run", listeners=[seen], device="cpu")
    assert seen.of(StepTaken)[-1].loss < 0.01
    assert "no valid set" in "\n".join(seen.of(DataPrepared)[0].lines)
    import unrolled

    assert unrolled.load(tmp_path / "run", device="cpu").predict(["a"]) == ["b"]


def test_three_pairs_and_a_big_batch(make_config, tmp_path):
    (tmp_path / "three.tsv").write_text("ab\tx\ncd\ty\nef\tz\n")
    config = make_config(max_steps=None, max_epochs=2, max_batch_size=64)
    outcome = train(tmp_path / "three.tsv", config=config, out=tmp_path / "run", device="cpu")
    assert outcome.best_value is not None


SCRIPT = """
import json, sys
from unrolled.config import Config
from unrolled.training import train
train(sys.argv[1], config=Config.model_validate_json(sys.argv[2]), out=sys.argv[3], device="cpu", overwrite=True)
sys.exit("torch._dynamo" in sys.modules)
"""


def in_a_process(pairs, config, out, **environment):
    arguments = [sys.executable, "-c", SCRIPT, str(pairs), config.model_dump_json(), str(out)]
    return subprocess.Popen(arguments, env=os.environ | environment)


def test_one_seed_gives_one_run_whatever_hashes_do(pairs, make_config, tmp_path):
    """Also: training imports nothing of PyTorch's compiler, which would take seconds."""
    config = make_config(max_steps=8, evaluate_every=4)
    config = config.model_copy(update={"data": Data.model_validate({"source": {"max_symbols": 3}})})
    runs = [tmp_path / hash_seed for hash_seed in "12"]
    processes = [in_a_process(pairs, config, run, PYTHONHASHSEED=run.name, OMP_NUM_THREADS="1") for run in runs]
    assert [process.wait() for process in processes] == [0, 0]
    assert_same_runs(*runs)
    assert (runs[0] / "vocabulary.json").read_bytes() == (runs[1] / "vocabulary.json").read_bytes()


def test_initial_weights_are_those_of_the_inventory(pairs, make_config, tmp_path):
    config = make_config(max_steps=1, optimizer=Optimizer(learning_rate=1e-12, weight_decay=0.0), seed=5)
    train(pairs, config=config, out=tmp_path / "run", device="cpu")
    codec = Codec.from_json(Run.open(tmp_path / "run").vocabulary())
    sizes = Sizes(len(codec.source), 0, len(codec.target))
    expected = parameters.initialise(inventory(config.model, sizes), 5)
    for name, value in weights_of(tmp_path / "run").items():
        np.testing.assert_allclose(value, expected[name], atol=1e-9)
