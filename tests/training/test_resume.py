"""Training that was crashed, interrupted or killed goes on exactly where it stopped."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sessions import (
    CrashError,
    Recorder,
    assert_same_runs,
    crash_at,
    is_step,
    log_of,
    losses_of,
    signal_at,
    state_of,
    weights_of,
)

from unrolled.config import Schedule
from unrolled.errors import CheckpointError, DataError
from unrolled.runs import Run, locked
from unrolled.training import train
from unrolled.training.events import StepTaken, TrainingStarted, Warned


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


def test_two_trainings_never_share_a_folder(pairs, config, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole[0], path)
    with locked(path):
        before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        with pytest.raises(CheckpointError, match="another process is training there"):
            train(pairs, resume=path)
        with pytest.raises(CheckpointError, match="another process is training there"):
            train(pairs, config=config, out=path, overwrite=True)
        assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert (path / ".lock").exists()  # nobody holds it now
    train(pairs, resume=path)


def test_resuming_where_no_run_is_makes_nothing(tmp_path):
    with pytest.raises(CheckpointError, match="is missing; expected a run folder"):
        train(resume=tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


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


def test_calibrated_choices_are_recorded_and_obeyed(make_pairs, make_config, tmp_path, monkeypatch):
    """Step count and matrix mode of a time budget stay those of the first session."""
    from unrolled.models.matrix_products import current_matrix_mode, matrix_mode
    from unrolled.training.budget import Budget
    from unrolled.training.events import Planned

    pairs, path = make_pairs(tmp_path / "pairs.tsv", 60), tmp_path / "run"
    config = make_config(max_steps=None, minutes=1.5 / 60, schedule=Schedule(warmup_steps=2))
    monkeypatch.setattr(Budget, "is_exceeded", lambda budget, seconds: False)  # a busy machine is no failure
    monkeypatch.setattr(Budget, "is_plan_due", lambda budget, num_plans, seconds: num_plans == 0)
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


def test_a_later_plan_is_resumed_too(make_pairs, make_config, tmp_path, monkeypatch):
    from unrolled.training import loop
    from unrolled.training.budget import Budget
    from unrolled.training.events import Planned

    pairs, path = make_pairs(tmp_path / "pairs.tsv", 60), tmp_path / "run"
    config = make_config(max_steps=None, minutes=1.5 / 60, schedule=Schedule(warmup_steps=2))
    monkeypatch.setattr(Budget, "is_exceeded", lambda budget, seconds: False)
    monkeypatch.setattr(Budget, "is_measured", lambda budget, seconds: budget._num_tokens > 0)
    monkeypatch.setattr(Budget, "is_plan_due", lambda budget, num_plans, seconds: num_plans < 2)
    monkeypatch.setattr(loop, "_SAME_PLAN", -1.0)  # a later plan always counts
    seen = Recorder()
    stop = signal_at(signal.SIGINT, lambda event: isinstance(event, Planned) and event.steps_before is not None)
    assert train(pairs, config=config, out=path, listeners=[seen, stop], device="cpu").reason == "interrupted"
    first, later = seen.of(Planned)
    assert (first.steps_before, later.steps_before) == (None, first.total_steps)
    again = Recorder()
    second = train(resume=path, listeners=[again], device="cpu")
    assert again.of(Planned) == []
    assert second.step == later.total_steps


def test_another_number_of_threads_is_said(pairs, config, tmp_path, monkeypatch):
    with pytest.raises(CrashError):
        train(pairs, config=config, out=tmp_path / "run", listeners=[crash_at(18)], device="cpu")
    before, seen = torch.get_num_threads(), Recorder()
    monkeypatch.setattr(torch, "get_num_threads", lambda: before + 1)
    train(resume=tmp_path / "run", listeners=[seen], device="cpu")
    assert f"threads {before} -> {before + 1}" in seen.of(Warned)[0].message
    assert Run.open(tmp_path / "run").environment().threads == before + 1


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


KILLS = 20
SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
from unrolled.config import Config
from unrolled.training import train
from unrolled.training.events import StepTaken, TrainingStarted, Warned

pairs, config, out, draw = sys.argv[1], Config.model_validate_json(sys.argv[2]), Path(sys.argv[3]), random.Random(0)

def listen(event):
    if isinstance(event, TrainingStarted):
        os.write(writer, str(event.step).encode())
    elif isinstance(event, Warned):
        os.write(writer, event.message.encode())
    elif isinstance(event, StepTaken):
        os.write(steps, b".")

for _ in range(int(sys.argv[4])):
    saved = max((int(path.stem.partition("-")[2]) for path in out.glob("resume/state-*.json")), default=0)
    (reader, writer), (taken, steps) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            if saved:
                train(resume=out, listeners=[listen], device="cpu")
            else:
                train(pairs, config=config, out=out, listeners=[listen], device="cpu", overwrite=True)
        finally:
            os._exit(1)
    os.close(writer), os.close(steps)
    started = os.read(reader, 1000).decode()
    assert started == str(saved), f"saved step {saved}, went on with: {started}"
    for _ in range(draw.randrange(1, 4)):
        os.read(taken, 1)
    time.sleep(draw.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(os.name == "nt", reason="forks, so that a kill costs no start of Python")
def test_killed_at_any_moment(pairs, make_config, tmp_path):
    """While it saves every step; what was saved is never lost, and training goes on with the newest complete state."""
    config, path = make_config(max_steps=3000, save_every=1), tmp_path / "run"
    arguments = [sys.executable, "-c", SCRIPT, pairs, config.model_dump_json(), path, KILLS]
    subprocess.run(list(map(str, arguments)), check=True)
    seen = Recorder()
    stop = signal_at(signal.SIGINT, lambda event: isinstance(event, TrainingStarted))
    outcome = train(resume=path, listeners=[seen, stop], device="cpu")
    assert outcome.reason == "interrupted"
    assert seen.of(TrainingStarted)[0].step >= KILLS // 2
    assert len(list(path.rglob("*.partial"))) == 0
    assert len(list((path / "resume").iterdir())) <= 8
    steps = [step for step, _ in losses_of(path)]
    assert steps == list(range(1, len(steps) + 1))
