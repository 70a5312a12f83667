import json
import math

import pytest

from unrolled.training.events import Evaluated, StepTaken, TrainingEnded, TrainingStarted, Warned
from unrolled.training.listeners import JsonLinesLog, TensorBoard


def started(step):
    return TrainingStarted(
        step,
        total_steps=9,
        steps_per_epoch=3,
        num_parameters=1,
        num_pairs=1,
        device="cpu",
        threads=1,
        matrix_mode="default",
    )


def taken(step, loss=1.5):
    return StepTaken(
        step,
        total_steps=9,
        epoch=1,
        loss=loss,
        gradient_norm=math.inf,
        learning_rate=0.1,
        num_labels=2,
        num_tokens=3,
        seconds=0.1,
        seconds_left=None,
    )


def ended(step):
    return TrainingEnded(step, reason="interrupted", best_step=None, best_value=None, seconds=1.0)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path, *events):
    with JsonLinesLog(path) as log:
        for event in events:
            log(event)


def test_one_event_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, started(0), taken(1, loss=0.1 + 0.2), Warned(1, "vélo"))
    first, step, warned = lines(path)
    assert (first["event"], first["step"]) == ("TrainingStarted", 0)
    assert step["loss"] == 0.1 + 0.2
    assert step["gradient_norm"] is None
    assert warned == {"event": "Warned", "step": 1, "message": "vélo"}


def test_lines_are_there_before_the_file_is_closed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonLinesLog(path)
    with log:
        log(started(0))
        log(taken(1))
        assert [line["step"] for line in lines(path)] == [0, 1]


@pytest.mark.parametrize("tail", ["", '{"event": "StepTaken", "st', '{"event": "StepTaken", "step": 2}'])
def test_resuming_drops_what_is_done_again(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    write(path, started(0), *map(taken, range(1, 6)), ended(5))
    with path.open("a") as file:
        file.write(tail)
    write(path, started(3), *map(taken, range(4, 8)), ended(7))
    found = lines(path)
    assert [line["step"] for line in found if line["event"] == "StepTaken"] == list(range(1, 8))
    assert [line["event"] for line in found].count("TrainingEnded") == 1


def test_an_interrupted_end_is_dropped_when_the_run_goes_on_from_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, started(0), taken(1), ended(1))
    write(path, started(1), taken(2), ended(2))
    assert [(line["event"], line["step"]) for line in lines(path)] == [
        ("TrainingStarted", 0),
        ("StepTaken", 1),
        ("TrainingStarted", 1),
        ("StepTaken", 2),
        ("TrainingEnded", 2),
    ]


def test_tensorboard_is_optional(monkeypatch):
    monkeypatch.setattr("unrolled.training.listeners.find_spec", lambda name: None)
    assert not TensorBoard.is_available()
    monkeypatch.setattr("unrolled.training.listeners.find_spec", lambda name: object())
    assert TensorBoard.is_available()


def test_what_tensorboard_is_told(tmp_path, monkeypatch):
    import sys
    import types

    told = []

    class Writer:
        def __init__(self, folder):
            told.append(folder)

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with TensorBoard(tmp_path) as board:
        board(started(0))
        board(taken(1))
        scored = {"epoch": 1, "is_best": True, "num_labels": 1, "seconds": 0.1}
        board(Evaluated(1, loss=2.0, metric="error_rate", value=0.5, **scored))
        board(Evaluated(2, loss=None, metric="loss", value=None, **scored))
    assert told == [
        str(tmp_path),
        ("train/loss", 1.5, 1),
        ("train/learning_rate", 0.1, 1),
        ("train/gradient_norm", math.inf, 1),
        ("dev/loss", 2.0, 1),
        ("dev/error_rate", 0.5, 1),
        "closed",
    ]
