"""Whole runs under examination: healthy ones, and ones with a planted fault."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from unrolled.config import Config, Data, RecurrentDecoder, RecurrentEncoder, Seq2Seq, Side, Training
from unrolled.diagnosis import FAULTS, examine_run
from unrolled.diagnosis.training_log import check_dev_values, check_progress, check_skipped_steps, check_start
from unrolled.errors import CheckpointError
from unrolled.runs import Run
from unrolled.training import train

SMALL = Seq2Seq(
    encoder=RecurrentEncoder(cell="gru", embedding_dim=16, hidden_size=16, dropout=0.0),
    decoder=RecurrentDecoder(cell="gru", embedding_dim=16, hidden_size=24, dropout=0.0),
)


def words(count: int, seed: int = 0, letters: str = "abcde") -> list[str]:
    draw = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(draw.choices(letters, k=draw.randint(2, 6)))] = None
    return list(found)


def write(path, pairs) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return str(path)


def settings(steps: int = 250, data: Data | None = None, **changes) -> Config:
    base = {"learning_rate": 0.01} | changes.pop("optimizer", {})
    training = {"max_steps": steps, "max_batch_size": 16, "label_smoothing": 0.0, "schedule": {"warmup_steps": 10}}
    values = training | {"optimizer": base, "evaluate_every": 50} | changes
    return Config(data=data or Data(), model=SMALL, training=Training.model_validate(values))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("healthy")
    pairs = [(word, word.upper()) for word in words(300)]
    return train(write(folder / "words.tsv", pairs), config=settings(), out=folder / "run").path


# --- healthy ---------------------------------------------------------------------------------------------------------


def test_a_healthy_run_has_no_finding(healthy):
    found = examine_run(healthy)
    assert not found, str(found)
    assert {"check_start", "check_overlap", "check_causal", "check_source", "check_generalisation"} <= {*found.checked}
    assert list(found.skipped) == ["check_overfits_one_batch"]


def test_an_interrupted_run_is_judged_by_its_newest_state(healthy, tmp_path):
    run = Run.open(healthy)
    (run.path / "model.safetensors").rename(tmp_path / "model.safetensors")
    try:
        assert not examine_run(healthy)
        assert "check_causal" in examine_run(healthy).checked
    finally:
        (tmp_path / "model.safetensors").rename(run.path / "model.safetensors")


def test_without_its_data_a_run_is_judged_by_its_log(healthy, tmp_path):
    file = Path(Run.open(healthy).data().train.path)
    content = file.read_text()
    write(tmp_path / "other.tsv", [(word, word.upper()) for word in words(20, seed=3)])
    try:
        file.write_text(content + "x\tX\n")
        found = examine_run(healthy)
        assert "changed since the run started" in found.skipped["the training data"]
        assert "check_progress" in found.checked and "check_causal" not in found.checked
        assert "check_causal" in examine_run(healthy, data=tmp_path / "other.tsv").checked
    finally:
        file.write_text(content)


def test_a_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="missing: not a run"):
        examine_run(tmp_path)


# --- planted in the data ---------------------------------------------------------------------------------------------


def test_targets_that_belong_to_other_sources(tmp_path):
    pairs = list(zip(words(60), words(60, seed=9), strict=True))
    run = train(write(tmp_path / "a.tsv", pairs), config=settings(500), out=tmp_path / "run").path
    assert "dev_got_worse" in examine_run(run).names
    (run / "model.safetensors").unlink()  # the best weights; the last ones know the training pairs by heart
    assert "learnt_by_heart" in examine_run(run).names


def test_more_targets_of_other_sources_than_can_be_learnt_by_heart(tmp_path):
    pairs = list(zip(words(600), words(600, seed=9), strict=True))
    run = train(write(tmp_path / "a.tsv", pairs), config=settings(), out=tmp_path / "run").path
    assert examine_run(run).names == {"source_ignored"}


def test_dev_pairs_among_the_training_pairs(tmp_path):
    pairs = [(word, word.upper()) for word in words(300)]
    dev = write(tmp_path / "dev.tsv", [("zz", "Z"), *pairs[:20]])
    run = train(write(tmp_path / "a.tsv", pairs), dev=dev, config=settings(), out=tmp_path / "run").path
    found = [one for one in examine_run(run) if one.name == "overlap"]
    assert found[0].measured.startswith("20 of 21 validation pairs")
    assert found[0].where.line == 2


def test_sources_that_look_alike_and_pairs_left_out(tmp_path):
    pairs = [(word, word.upper()) for word in words(300) if len(word) == 5]
    pairs += [(20 * "a", "B")] * (len(pairs) // 3)
    data = Data(source=Side(min_count=10_000, max_length=10))
    run = train(write(tmp_path / "a.tsv", pairs), config=settings(50, data=data), out=tmp_path / "run").path
    found = {one.name: one for one in examine_run(run)}
    assert {"unknown_symbols", "pairs_left_out", "source_ignored"} <= set(found)
    assert len(pairs[found["pairs_left_out"].where.line - 1][0]) == 20
    assert "source symbols are unknown" in found["unknown_symbols"].measured


# --- planted in the training -----------------------------------------------------------------------------------------


def test_a_rate_that_is_far_too_high_leaves_the_loss_at_chance(tmp_path):
    pairs = [(word, word.upper()) for word in words(300)]
    config = settings(200, optimizer={"learning_rate": 30.0})
    run = train(write(tmp_path / "a.tsv", pairs), config=config, out=tmp_path / "run").path
    found = examine_run(run)
    assert "loss_stuck" in found.names
    assert "highest learning rate was 30" in next(one.measured for one in found if one.name == "loss_stuck")
    assert "check_overfits_one_batch" in found.checked


# --- the log alone ---------------------------------------------------------------------------------------------------


def steps(losses, **more):
    base = {"event": "StepTaken", "learning_rate": 0.1}
    return [{**base, "step": number, "loss": loss, **more} for number, loss in enumerate(losses, 1)]


def evaluations(values, metric="loss"):
    base = {"event": "Evaluated", "weights": "current", "metric": metric}
    return [{**base, "step": 10 * number, "value": value} for number, value in enumerate(values, 1)]


def test_the_first_loss_is_compared_with_chance():
    assert check_start(steps([np.log(10) + 0.9]), 10) == []
    (found,) = check_start(steps([np.log(10) + 1.1]), 10)
    assert (found.name, found.where.step) == ("first_loss", 1)
    assert check_start(steps([9.0])[:0], 10) == []


def test_a_loss_that_stays_at_chance_is_stuck_after_enough_steps():
    chance = float(np.log(10))
    assert [one.name for one in check_progress(steps([chance] * 200), 10)] == ["loss_stuck"]
    assert check_progress(steps([chance] * 199), 10) == []
    assert check_progress(steps([chance] * 180 + [0.98 * chance] * 20), 10) == []
    assert check_progress(steps([0.5 * chance] * 180 + [2 * chance] * 20), 10)


def test_skipped_steps_are_counted_and_named():
    skipped = {"event": "StepSkipped", "parameter": "decoder.w", "lines": [7, 9]}
    events = [*steps([1.0] * 99), {**skipped, "step": 100}]
    assert check_skipped_steps(events) == []
    (found,) = check_skipped_steps([*events, {**skipped, "step": 101}])
    assert (found.name, found.where.module, found.where.step, found.where.line) == (
        "steps_skipped",
        "decoder.w",
        100,
        7,
    )
    halted = {"event": "TrainingHalted", "step": 100, "fault": "non_finite"}
    assert [one.name for one in check_skipped_steps([*events, halted])] == ["non_finite"]


@pytest.mark.parametrize(
    ("values", "is_worse"),
    [
        ([1.0, 0.5, 0.7, 0.7, 0.7, 0.7], True),
        ([1.0, 0.9, 0.8, 0.6, 0.5, 0.7], False),  # the best is late
        ([1.0, 0.5, 0.6, 0.6, 0.6, 0.6], False),  # hardly worse
        ([0.02, 0.01, 0.02, 0.03, 0.03, 0.03], False),  # a few items of a small dev set
        ([1.0, 0.5, 0.7], False),  # too few to tell
    ],
)
def test_dev_values_that_got_much_worse(values, is_worse):
    assert bool(check_dev_values(evaluations(values))) == is_worse


# --- for programs ----------------------------------------------------------------------------------------------------


def test_findings_are_plain_json(healthy):
    assert json.loads(json.dumps(examine_run(healthy).to_json()))["findings"] == []


def test_every_name_is_explained_in_the_guide():
    guide = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    assert [name for name in FAULTS if f"`{name}`" not in guide] == []
