"""Training that starts from another run."""

import numpy as np
import pytest
from sessions import CrashError, Recorder, assert_same_runs, crash_at, state_of, weights_of

from unrolled.config import Config, Optimizer, Training
from unrolled.errors import ConfigError
from unrolled.runs import Run
from unrolled.training import train
from unrolled.training.events import DataPrepared, TrainingStarted


def test_other_letters_keep_the_vocabulary(whole, make_pairs, make_config, tmp_path):
    """Trained on a to e; f to j are as many symbols, but none of them is known."""
    others, seen = make_pairs(tmp_path / "others.tsv", 30, letters="fghij"), Recorder()
    train(
        others,
        start_from=whole[0],
        config=make_config(max_steps=2),
        out=tmp_path / "run",
        listeners=[seen],
        device="cpu",
    )
    assert Run.open(tmp_path / "run").vocabulary() == Run.open(whole[0]).vocabulary()
    report = "\n".join(seen.of(DataPrepared)[0].lines)
    assert all(f"U+{ord(letter):04X} {letter}" in report for letter in "fghij")


def test_known_letters_lose_nothing(whole, make_pairs, make_config, tmp_path):
    known, path = make_pairs(tmp_path / "known.tsv", 30, letters="abc"), tmp_path / "run"
    rule = Optimizer(learning_rate=1e-12, weight_decay=0.0)
    seen = Recorder()
    config = make_config(max_steps=1, optimizer=rule)
    train(known, start_from=whole[0], config=config, out=path, listeners=[seen], device="cpu")
    before, after = weights_of(whole[0]), weights_of(path)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, atol=1e-10)
    assert seen.of(TrainingStarted)[0].step == 0
    steps = [name for name in state_of(path).arrays["training-1"] if name.startswith("moments/steps")]
    assert all(state_of(path).arrays["training-1"][name] <= 1 for name in steps), "a fresh optimiser"


def test_a_fine_tuned_run_resumes_exactly(whole, make_pairs, make_config, tmp_path):
    others = make_pairs(tmp_path / "others.tsv", 60, letters="abxyz")
    config = make_config(max_steps=12, save_every=5)
    train(others, start_from=whole[0], config=config, out=tmp_path / "one", device="cpu")
    with pytest.raises(CrashError):
        train(
            others,
            start_from=whole[0],
            config=config,
            out=tmp_path / "two",
            listeners=[crash_at(8)],
            device="cpu",
        )
    train(resume=tmp_path / "two", device="cpu")
    assert_same_runs(tmp_path / "one", tmp_path / "two")


def test_another_model_cannot_start_from_it(whole, pairs, make_config, tmp_path):
    config = Config(training=Training(max_steps=1))
    with pytest.raises(ConfigError, match=r"the model of .* has other settings than config\.model"):
        train(pairs, start_from=whole[0], config=config, out=tmp_path / "run")
