"""The doctor on runs whose inputs are vectors: healthy ones, and the same with a fault planted in their weights."""

import json
import random

import numpy as np
import pytest
import torch

from unrolled import presets
from unrolled.diagnosis import examine_run
from unrolled.diagnosis.vectors import constant_loss, head_loss, vector_batch
from unrolled.errors import DataError
from unrolled.settings import resolve
from unrolled.text import FrameBatch
from unrolled.training import train

SMALL = ("model.decoder.hidden_size=16", "training.evaluate_every=100", "training.minutes=none")


def walks(path, *, seed=0):
    """Pieces that walk over twelve keys, two at a time."""
    draw = random.Random(seed)

    def piece():
        start, way = draw.randrange(12), draw.choice([1, 5])
        return [sorted({(start + way * i) % 12, (start + way * i + 4) % 12}) for i in range(draw.randint(3, 9))]

    path.write_text(json.dumps({part: [piece() for _ in range(60)] for part in ("train", "valid", "test")}))
    return path


@pytest.fixture(scope="module")
def music_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("music")
    settings = ["data.num_keys=12", "training.max_steps=300", "training.max_epochs=none", *SMALL]
    train(walks(folder / "walks.json"), config=resolve(presets.get("music"), overrides=settings), out=folder / "run")
    return folder / "run"


def test_a_healthy_run_of_music(music_run):
    found = examine_run(music_run)
    assert found.findings == ()
    assert {"check_causal", "check_state_handling", "check_stepwise", "check_generalisation"} <= set(found.checked)
    assert "check_progress" not in found.checked  # there is no ln V


@pytest.mark.parametrize("task", ["adding", "copy-memory"])
def test_a_healthy_run_of_a_task(task, tmp_path):
    settings = [*SMALL, "training.max_steps=30", "training.max_batch_size=8"]
    train(f"task:{task}", config=resolve(presets.get(task), overrides=settings), out=tmp_path / "run")
    found = examine_run(tmp_path / "run")
    assert [one for one in found if one.severity == "broken"] == []
    assert ("check_progress" in found.checked) == (task == "copy-memory")
    with pytest.raises(DataError, match="which needs no file"):
        examine_run(tmp_path / "run", data=tmp_path / "any.json")


def test_a_model_that_learnt_nothing_is_named(tmp_path):
    settings = ["data.num_keys=12", "training.max_steps=210", "training.max_epochs=none", *SMALL]
    still = ["training.optimizer.learning_rate=1e-9", "training.schedule.type=constant"]
    config = resolve(presets.get("music"), overrides=[*settings, *still])
    train(walks(tmp_path / "walks.json"), config=config, out=tmp_path / "run")
    found = examine_run(tmp_path / "run")
    assert "loss_stuck" in found.names
    (stuck,) = (one for one in found if one.name == "loss_stuck")
    assert "the best constant answer has" in stuck.measured


def test_other_data_takes_the_place_of_the_training_file(music_run, tmp_path):
    (music_run.parent / "walks.json").rename(tmp_path / "gone.json")
    try:
        assert "the training data" in examine_run(music_run).skipped
        assert "check_generalisation" in examine_run(music_run, data=tmp_path / "gone.json").checked
    finally:
        (tmp_path / "gone.json").rename(music_run.parent / "walks.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError):
        examine_run(music_run, data=tmp_path / "bad.json")


LABELS = {
    "bernoulli": np.array([[[1, 0], [1, 1], [0, 0]], [[1, 0], [0, 0], [0, 0]]], np.float32),
    "regression": np.array([[[1.0], [3.0], [9.0]], [[2.0], [9.0], [9.0]]], np.float32),
    "categorical": np.array([[0, 1, 2], [0, 2, 2]]),
}
COUNTED = np.array([[True, True, False], [True, False, False]])


@pytest.mark.parametrize("head", LABELS)
def test_the_best_constant_answer_by_hand(head):
    lengths = np.array([3, 2])
    batch = vector_batch(FrameBatch(np.zeros((2, 3, 1), np.float32), LABELS[head], COUNTED, lengths, np.arange(2)))
    assert batch.real_inputs.tolist() == [[True, True, True], [True, True, False]]
    rate = (4 / 5, 2 / 5)  # seen 3 of 3 and 1 of 3 times, each outcome once more
    expected = {
        "bernoulli": -(3 * np.log(rate[0]) + np.log(rate[1]) + 2 * np.log(1 - rate[1])) / 3,
        "regression": np.var([1, 3, 2]),
        "categorical": -(2 * np.log(3 / 5) + np.log(2 / 5)) / 3,  # seen 2 and 1 times, each once more
    }
    assert constant_loss(head, batch, batch) == pytest.approx(expected[head], rel=1e-6)


def test_places_that_do_not_count_move_no_loss():
    lengths = np.array([3, 3])
    outputs = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    for head in ("bernoulli", "regression"):
        labels = np.random.default_rng(0).integers(0, 2, (2, 3, 2)).astype(np.float32)
        batch = FrameBatch(np.zeros((2, 3, 1), np.float32), labels, COUNTED, lengths, np.arange(2))
        loss = head_loss(head)(outputs, vector_batch(batch).labels)
        (gradient,) = torch.autograd.grad(loss, outputs)
        assert gradient.isfinite().all()
        labels[~COUNTED] = 7.0
        assert torch.equal(loss, head_loss(head)(outputs, vector_batch(batch).labels))
