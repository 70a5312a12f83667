import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from unrolled import parameters
from unrolled.config import Config, Data, Optimizer, Schedule, Training
from unrolled.errors import CheckpointError, ConfigError, DataError
from unrolled.parameters import Sizes, inventory
from unrolled.runs import Run
from unrolled.text import Codec
from unrolled.training import train
from unrolled.training.events import CheckpointSaved, DataPrepared, Evaluated, StepTaken, TrainingStarted, Warned


class Recorder(list):
    def __call__(self, event):
        self.append(event)

    def of(self, kind):
        return [event for event in self if type(event) is kind]


class CrashError(Exception):
    pass


def crash_at(step):
    """A listener that ends everything once this step is reported."""

    def listen(event):
        if isinstance(event, StepTaken) and event.step == step:
            raise CrashError

    return listen


def signal_at(number, wanted):
    """A listener that sends this process a signal at the first event that is wanted."""
    sent = []

    def listen(event):
        if wanted(event) and not sent:
            sent.append(event)
            os.kill(os.getpid(), number)

    return listen


def is_step(step):
    return lambda event: isinstance(event, StepTaken) and event.step == step


def weights_of(path):
    run = Run.open(path)
    codec = Codec.from_json(run.vocabulary())
    sizes = Sizes(len(codec.source), codec.source.num_features, len(codec.target))
    return run.weights({parameter.name: parameter.shape for parameter in inventory(run.config.model, sizes)})


def state_of(path):
    """The last state of a run, without what clocks gave."""
    state = Run.open(path).states.load()
    del state.values["progress"]["seconds"]
    return state


def assert_same_arrays(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.array_equal(value, other[name]), name


def assert_same_runs(one, other):
    """Weights, moments, random states, selection and logged losses, to the last bit."""
    assert_same_arrays(weights_of(one), weights_of(other))
    first, second = state_of(one), state_of(other)
    assert first.values == second.values
    assert first.arrays.keys() == second.arrays.keys()
    for group, arrays in first.arrays.items():
        assert_same_arrays(arrays, second.arrays[group])
    assert losses_of(one) == losses_of(other)


def log_of(path):
    return [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]


def losses_of(path):
    return [(line["step"], line["loss"]) for line in log_of(path) if line["event"] == "StepTaken"]


@pytest.fixture(scope="module")
def pairs(make_pairs, tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="module")
def config(make_config):
    return make_config(
        max_steps=40, batch_tokens=256, evaluate_every=7, average="best", average_count=2, patience=50, save_every=17
    )


@pytest.fixture(scope="module")
def whole(pairs, config, tmp_path_factory):
    """A run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    seen = Recorder()
    outcome = train(pairs, config=config, out=path, listeners=[seen], device="cpu")
    return path, outcome, seen


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


def test_resuming_after_a_crash_is_the_same_run(whole, pairs, config, tmp_path):
    with pytest.raises(CrashError):
        train(pairs, config=config, out=tmp_path / "run", listeners=[crash_at(25)], device="cpu")
    torch.rand(7)
    seen = Recorder()
    outcome = train(resume=tmp_path / "run", listeners=[seen], device="cpu")
    assert outcome.reason == "completed"
    assert seen.of(TrainingStarted)[0].step == 17
    assert seen.of(StepTaken)[0].step == 18
    assert_same_runs(tmp_path / "run", whole[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_step_and_saves(whole, pairs, config, tmp_path, number):
    path = tmp_path / "run"
    outcome = train(pairs, config=config, out=path, listeners=[signal_at(number, is_step(20))], device="cpu")
    assert (outcome.reason, outcome.signal, outcome.exit_code) == ("interrupted", number, 128 + number)
    assert outcome.resume_command == f"unrolled train --resume {path}"
    assert state_of(path).step == outcome.step >= 20
    weights_of(path)  # can predict already
    seen = Recorder()
    train(resume=path, listeners=[seen], device="cpu")
    before = next(line for line in log_of(path) if line["event"] == "StepTaken" and line["step"] == outcome.step)
    assert seen.of(StepTaken)[0].seconds > before["seconds"], "time goes on as well"
    assert_same_runs(path, whole[0])


def test_an_interrupt_during_an_evaluation(whole, pairs, config, tmp_path, monkeypatch):
    """The evaluation is given up, and done when the run goes on."""
    from unrolled.training.evaluation import DevSet

    score, calls = DevSet._loss, []

    def interrupted(dev, model, indices):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return score(dev, model, indices)

    monkeypatch.setattr(DevSet, "_loss", interrupted)
    monkeypatch.setattr("unrolled.training.evaluation._MAX_BATCH_SIZE", 5)
    outcome = train(pairs, config=config, out=tmp_path / "run", device="cpu")
    assert (outcome.reason, outcome.step) == ("interrupted", 7)
    assert state_of(tmp_path / "run").values["progress"]["evaluated_step"] == 0
    monkeypatch.undo()
    train(resume=tmp_path / "run", device="cpu")
    assert_same_runs(tmp_path / "run", whole[0])


def test_an_interrupt_during_a_save(whole, pairs, config, tmp_path, monkeypatch):
    from unrolled.runs import states

    write, calls = states.write_atomic, []

    def interrupted(path, content):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        write(path, content)

    monkeypatch.setattr(states, "write_atomic", interrupted)
    outcome = train(pairs, config=config, out=tmp_path / "run", device="cpu")
    assert (outcome.reason, outcome.step) == ("interrupted", 17)
    train(resume=tmp_path / "run", device="cpu")
    assert_same_runs(tmp_path / "run", whole[0])


def test_two_interrupts_leave_at_once_with_files_intact(whole, pairs, config, tmp_path):
    def twice(event):
        if is_step(30)(event):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(pairs, config=config, out=tmp_path / "run", listeners=[twice], device="cpu")
    assert signal.getsignal(signal.SIGINT) is before
    assert state_of(tmp_path / "run").step == 17
    train(resume=tmp_path / "run", device="cpu")
    assert_same_runs(tmp_path / "run", whole[0])


def test_resuming_a_finished_run_writes_its_weights_again(pairs, config, whole, tmp_path):
    path = tmp_path / "run"
    train(pairs, config=config, out=path, device="cpu")
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="unrolled train --resume"):
        weights_of(path)
    outcome = train(resume=path, device="cpu")
    assert (outcome.reason, outcome.step) == ("completed", 40)
    assert_same_runs(path, whole[0])


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_state_is_named_and_the_previous_one_taken(pairs, config, whole, tmp_path, damage):
    path = tmp_path / "run"
    with pytest.raises(CrashError):
        train(pairs, config=config, out=path, listeners=[crash_at(36)], device="cpu")
    newest = path / "resume" / "training-34.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(newest.read_bytes()[:-1] if damage == "truncated" else content)
    seen = Recorder()
    train(resume=path, listeners=[seen], device="cpu")
    assert seen.of(TrainingStarted)[0].step == 17
    assert "training-34.safetensors" in seen.of(Warned)[0].message
    assert_same_runs(path, whole[0])


def test_a_run_that_was_killed_before_its_first_save_starts_again(pairs, config, whole, tmp_path):
    with pytest.raises(CrashError):
        train(pairs, config=config, out=tmp_path / "run", listeners=[crash_at(5)], device="cpu")
    train(resume=tmp_path / "run", device="cpu")
    assert_same_runs(tmp_path / "run", whole[0])


def test_changed_data_is_refused(make_pairs, config, tmp_path):
    pairs = make_pairs(tmp_path / "pairs.tsv")
    with pytest.raises(CrashError):
        train(pairs, config=config, out=tmp_path / "run", listeners=[crash_at(20)], device="cpu")
    content = pairs.read_text()
    pairs.write_text(content.replace("a", "b", 1))
    with pytest.raises(DataError, match=r"pairs\.tsv: changed since the run started"):
        train(resume=tmp_path / "run", device="cpu")
    pairs.unlink()
    with pytest.raises(DataError, match=r"pairs\.tsv: .* gone"):
        train(resume=tmp_path / "run", device="cpu")
    moved = tmp_path / "moved.tsv"
    moved.write_text(content)
    assert train(moved, resume=tmp_path / "run", device="cpu").reason == "completed"


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


def test_calibrated_choices_are_recorded_and_obeyed(make_pairs, make_config, tmp_path, monkeypatch):
    """Step count and matrix mode of a time budget stay those of the first session."""
    from unrolled.training import current_matrix_mode, matrix_mode
    from unrolled.training.budget import Budget
    from unrolled.training.events import Planned

    pairs, path = make_pairs(tmp_path / "pairs.tsv", 60), tmp_path / "run"
    config = make_config(max_steps=None, minutes=1.5 / 60, schedule=Schedule(warmup_steps=2))
    monkeypatch.setattr(Budget, "is_exceeded", lambda budget, seconds: False)  # a busy machine is no failure
    seen, modes = Recorder(), []
    stop = signal_at(signal.SIGINT, lambda event: isinstance(event, Planned))
    with matrix_mode("onednn"):
        first = train(pairs, config=config, out=path, listeners=[seen, stop], device="cpu")
    (plan,) = seen.of(Planned)
    assert first.reason == "interrupted"
    recorded = Run.open(path).environment().matrix_mode
    again = Recorder()
    second = train(resume=path, listeners=[again, lambda event: modes.append(current_matrix_mode())], device="cpu")
    assert recorded == "onednn" == modes[-1]
    assert current_matrix_mode() == "default"
    assert again.of(Planned) == []
    assert second.step == plan.total_steps
    assert again.of(TrainingStarted)[0].total_steps == plan.total_steps


def test_another_number_of_threads_is_said(pairs, config, tmp_path, monkeypatch):
    with pytest.raises(CrashError):
        train(pairs, config=config, out=tmp_path / "run", listeners=[crash_at(18)], device="cpu")
    before, seen = torch.get_num_threads(), Recorder()
    monkeypatch.setattr(torch, "get_num_threads", lambda: before + 1)
    train(resume=tmp_path / "run", listeners=[seen], device="cpu")
    assert f"threads {before} -> {before + 1}" in seen.of(Warned)[0].message
    assert Run.open(tmp_path / "run").environment().threads == before + 1


# --- starting from another run ---


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


# --- arguments, folders, foreign files ---


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


def test_a_state_of_another_version_is_said(pairs, config, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(CrashError):
        train(pairs, config=config, out=path, listeners=[crash_at(18)], device="cpu")
    states = Run.open(path).states
    state = states.load()
    state.values["progress"]["mood"] = "good"
    states.save(
        18, state.values, {name.replace("17", "18"): lambda kept=kept: kept for name, kept in state.arrays.items()}
    )
    with pytest.raises(CheckpointError, match="state of step 18 was written by another version"):
        train(resume=path, device="cpu")


def test_a_state_of_another_model_is_refused(pairs, config, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(CrashError):
        train(pairs, config=config, out=path, listeners=[crash_at(18)], device="cpu")
    states = Run.open(path).states
    state = states.load()
    weights = state.arrays["weights-17"]
    weights["decoder.novelty"] = weights.pop("decoder.output.bias")
    states.save(
        18, state.values, {name.replace("17", "18"): lambda kept=kept: kept for name, kept in state.arrays.items()}
    )
    with pytest.raises(CheckpointError, match=r"unknown tensor decoder\.novelty \(and 1 missing"):
        train(resume=path, device="cpu")


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def test_a_pickle_in_place_of_a_state_is_refused_and_not_run(pairs, config, tmp_path):
    path, marker = tmp_path / "run", tmp_path / "marker"
    with pytest.raises(CrashError):
        train(pairs, config=config, out=path, listeners=[crash_at(18)], device="cpu")
    torch.save(Bomb(marker), path / "resume" / "training-17.safetensors")
    with pytest.raises(CheckpointError, match=r"training-17\.safetensors is refused: .* could run code"):
        train(resume=path, device="cpu")
    (path / "resume" / "state-00000017.json").write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(CheckpointError, match=r"state-00000017\.json is damaged"):
        train(resume=path, device="cpu")
    assert not marker.exists()


# --- little data ---


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


# --- whole processes ---

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


def test_killed_at_any_moment(pairs, make_config, tmp_path):
    """While it saves every step; what was saved is never lost, and resuming works."""
    config, path = make_config(max_steps=3000, save_every=1), tmp_path / "run"
    for attempt in range(3):
        process = in_a_process(pairs, config, path)
        resume = path / "resume"
        deadline = time.monotonic() + 60
        while not list(resume.glob("state-*.json")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05 + 0.037 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen = Recorder()
        outcome = train(
            resume=path,
            listeners=[seen, signal_at(signal.SIGINT, lambda event: isinstance(event, TrainingStarted))],
            device="cpu",
        )
        assert outcome.reason == "interrupted"
        assert seen.of(TrainingStarted)[0].step >= 1
        assert seen.of(Warned) == []
        assert len(list(path.rglob("*.partial"))) == 0
        assert len(list(resume.iterdir())) <= 8
        steps = [step for step, _ in losses_of(path)]
        assert steps == list(range(1, len(steps) + 1))


def test_initial_weights_are_those_of_the_inventory(pairs, make_config, tmp_path):
    config = make_config(max_steps=1, optimizer=Optimizer(learning_rate=1e-12, weight_decay=0.0), seed=5)
    train(pairs, config=config, out=tmp_path / "run", device="cpu")
    codec = Codec.from_json(Run.open(tmp_path / "run").vocabulary())
    sizes = Sizes(len(codec.source), 0, len(codec.target))
    expected = parameters.initialise(inventory(config.model, sizes), 5)
    for name, value in weights_of(tmp_path / "run").items():
        np.testing.assert_allclose(value, expected[name], atol=1e-9)
