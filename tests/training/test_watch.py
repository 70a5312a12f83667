"""The watch ends what is hopeless, and nothing else."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from unrolled.config import Optimizer, Schedule
from unrolled.diagnosis import FAULTS, examine_run
from unrolled.errors import DivergenceError
from unrolled.text import collate
from unrolled.training.events import StepTaken, TrainingHalted
from unrolled.training.schedule import rate_factor
from unrolled.training.session import train
from unrolled.training.watch import WINDOW, Watch, source_effect

V = 20
CHANCE = math.log(V)
NOISE = 0.02


def taken(step, loss, rate):
    return StepTaken(
        step,
        total_steps=None,
        epoch=1,
        loss=loss,
        gradient_norm=1.0,
        learning_rate=rate,
        num_labels=1,
        num_tokens=1,
        seconds=0.0,
        seconds_left=None,
    )


def follow(curve, schedule, *, steps, effect=None, seed=0):
    """Feed a loss curve to a watch; the fault and the step that it ended at, or none."""
    noise = NOISE * np.random.default_rng(seed).standard_normal(steps)
    watch = Watch(num_symbols=V, warmup_steps=schedule.warmup_steps, effect=effect)
    try:
        for step in range(1, steps + 1):
            watch(taken(step, curve(step) + noise[step - 1], rate_factor(schedule, step, steps)))
    except DivergenceError as error:
        return error.fault, error.step
    return None


CONSTANT = Schedule(type="constant", warmup_steps=100)


# --- hopeless --------------------------------------------------------------------------------------------------------


def test_a_loss_at_chance_is_stuck_after_two_windows():
    assert follow(lambda step: CHANCE, CONSTANT, steps=3000) == ("loss_stuck", 100 + 2 * WINDOW)


def test_a_loss_that_stays_high_is_stuck_once_its_rate_has_come_down():
    cosine = Schedule(type="cosine", warmup_steps=100)
    fault, step = follow(lambda step: CHANCE + 1, cosine, steps=10_000)
    assert fault == "loss_stuck"
    assert 5000 <= step < 5000 + 2 * WINDOW


def test_a_source_without_any_effect_is_ignored():
    found = follow(lambda step: 0.5 * CHANCE, CONSTANT, steps=3000, effect=lambda: 0.0)
    assert found == ("source_ignored", 100 + WINDOW)


def test_faults_have_the_names_of_the_diagnosis():
    assert {"loss_stuck", "source_ignored", "non_finite"} <= set(FAULTS)


# --- slow and healthy ------------------------------------------------------------------------------------------------

HEALTHY = {
    "a warm-up of 4000 steps": (lambda step: CHANCE if step < 4000 else 1.0, Schedule(warmup_steps=4000)),
    "a plateau at the frequencies of uniform letters": (lambda step: CHANCE - 0.01 if step < 9000 else 0.1, CONSTANT),
    "copy memory": (lambda step: 0.35 if step < 9000 else 0.0, CONSTANT),
    "very slowly falling": (lambda step: CHANCE * (1 - step / 300_000), CONSTANT),
    "falling from far above": (lambda step: 3 * CHANCE * math.exp(-step / 20_000), CONSTANT),
    "a rate that has to come down first": (
        lambda step: CHANCE + 1 if step < 4900 else 0.5,
        Schedule(type="cosine", warmup_steps=10),
    ),
    "a burst": (lambda step: CHANCE + 2 if 3000 <= step < 3400 else 1.0, CONSTANT),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_slow_run_goes_on(name):
    curve, schedule = HEALTHY[name]
    assert all(follow(curve, schedule, steps=10_000, effect=lambda: 1e-5, seed=seed) is None for seed in range(5))


SHORT = 100


@pytest.fixture
def short_windows(monkeypatch):
    """Judge sooner than in earnest, on less."""
    monkeypatch.setattr("unrolled.training.watch.WINDOW", SHORT)


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": Schedule(warmup_steps=250)},
        {"optimizer": Optimizer(learning_rate=5e-5), "schedule": Schedule(type="constant", warmup_steps=0)},
    ],
    ids=["long warm-up", "low rate"],
)
def test_a_slow_training_goes_on(changes, short_windows, make_config, make_pairs, tmp_path):
    config = make_config(max_steps=350, evaluate_every=350, max_batch_size=8, **changes)
    outcome = train(make_pairs(tmp_path / "words.tsv"), config=config, out=tmp_path / "run")
    assert outcome.step == 350


# --- in training -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hopeless(make_config):
    """Settings with which nothing is learnt."""

    def make(*, watch):
        frozen = {"optimizer": Optimizer(learning_rate=1e-12), "schedule": Schedule(type="constant", warmup_steps=0)}
        steps = 2 * SHORT + 10
        return make_config(max_steps=steps, evaluate_every=steps, max_batch_size=4, dropout=0.0, watch=watch, **frozen)

    return make


def test_a_hopeless_training_ends_with_its_reason_and_what_was_reached(short_windows, hopeless, make_pairs, tmp_path):
    seen = []
    pairs = make_pairs(tmp_path / "words.tsv")
    with pytest.raises(DivergenceError, match=rf"^step {2 * SHORT}: the loss is stuck: .* try a learning rate"):
        train(pairs, config=hopeless(watch=True), out=tmp_path / "run", listeners=[seen.append])
    halt = next(event for event in seen if isinstance(event, TrainingHalted))
    assert (halt.fault, halt.step) == ("loss_stuck", 2 * SHORT + 1)
    assert list((tmp_path / "run" / "resume").glob("state-*.json"))
    found = examine_run(tmp_path / "run")
    assert found[0].name == "loss_stuck"


def test_the_watch_can_be_left_out(short_windows, hopeless, make_pairs, tmp_path):
    outcome = train(make_pairs(tmp_path / "words.tsv"), config=hopeless(watch=False), out=tmp_path / "run")
    assert outcome.step == 2 * SHORT + 10


# --- the effect of the source ----------------------------------------------------------------------------------------


def test_the_effect_of_sources(build, make_examples):
    model, batch = build(dropout=0.3), collate(make_examples(8), np.arange(8))
    cpu = torch.device("cpu")
    random = torch.get_rng_state()
    assert source_effect(model, batch, device=cpu) > 1e-4
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    same = dataclasses.replace(
        batch, source=batch.source[:1].repeat(8, 0), source_mask=batch.source_mask[:1].repeat(8, 0)
    )
    assert source_effect(model, same, device=cpu) == math.inf
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("encoder"):
                parameter.zero_()
    assert source_effect(model, batch, device=cpu) == 0.0
