"""Feedings: exact schedules, exact steps for every architecture, and chance that belongs to its place alone."""

import math

import numpy as np
import pytest
import torch
from conftest_models import COMBINATIONS, SIZES, build, random_weights, settings_of

from unrolled import config, models
from unrolled.decoding import greedy
from unrolled.errors import ConfigError
from unrolled.models.engine import TorchEngine
from unrolled.settings import resolve
from unrolled.text import BOS, EOS, PAD, Batch
from unrolled.training import PairObjective, cross_entropy_sum, train
from unrolled.training.events import StepTaken
from unrolled.training.feeding import chosen_inputs, truth_probability

CPU = torch.device("cpu")
FREE, SAMPLES = config.FreeRunning(), config.FreeRunning(draw="sample")


def scheduled(**options):
    return config.ScheduledSampling(**options)


# --- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeding", "after", "expected"),
    [
        (scheduled(rate=0.01), 0, 1.0),
        (scheduled(rate=0.01), 30, 0.7),
        (scheduled(rate=0.01), 1000, 0.0),
        (scheduled(rate=0.01, floor=0.25), 74, 0.26),
        (scheduled(rate=0.01, floor=0.25), 75, 0.25),
        (scheduled(rate=0.01, floor=0.25), 90, 0.25),
        (scheduled(decay="exponential", rate=0.5), 0, 1.0),
        (scheduled(decay="exponential", rate=0.5), 3, 0.125),
        (scheduled(decay="exponential", rate=0.5, floor=0.2), 3, 0.2),
        (scheduled(decay="inverse_sigmoid", rate=10.0), 0, 10 / 11),
        (scheduled(decay="inverse_sigmoid", rate=10.0), 20, 10 / (10 + math.e**2)),
        (scheduled(decay="inverse_sigmoid", rate=1.0), 100_000, 0.0),
        (config.TeacherForcing(), 5, 1.0),
        (FREE, 5, 0.0),
    ],
)
def test_the_probability_of_the_truth_after_some_steps(feeding, after, expected):
    assert truth_probability(feeding, after + 1) == pytest.approx(expected, abs=1e-12)


def test_the_middle_of_the_inverse_sigmoid_is_where_it_is_said_to_be():
    feeding = scheduled(decay="inverse_sigmoid", rate=math.e**3)
    after = 3 * math.e**3  # k ln k
    assert truth_probability(feeding, int(after) + 1) > 0.5 > truth_probability(feeding, int(after) + 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["type=scheduled_sampling", "decay=exponential", "rate=1.0"], "decay=exponential needs a rate below 1, got 1"),
        (["type=scheduled_sampling", "decay=inverse_sigmoid"], "needs a rate of at least 1, got 0.0001"),
        (["type=free_running", "rate=0.1"], "training.feeding.rate: not a setting of type free_running"),
        (["type=professor"], "expected teacher_forcing or free_running or scheduled_sampling, got 'professor'"),
    ],
)
def test_senseless_feedings_are_refused(overrides, message):
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=[f"training.feeding.{override}" for override in overrides])
    assert message in str(caught.value)


def test_language_models_are_fed_the_truth():
    with pytest.raises(ConfigError, match=r"training\.feeding: free_running is for model\.type=seq2seq"):
        resolve(overrides=["model.type=language_model", "training.feeding.type=free_running"])


# --- exact steps -----------------------------------------------------------------------------------------------------


def make_batch(seed=0, width=7):
    rng = np.random.default_rng(seed)
    source = rng.integers(4, 15, (4, 5))
    lengths = np.array([width, 2, 5, 1])
    labels = np.where(np.arange(width) < lengths[:, None], rng.integers(4, 13, (4, width)), PAD)
    labels[np.arange(4), lengths - 1] = EOS
    inputs = np.concatenate([np.full((4, 1), BOS), labels[:, :-1]], axis=1)
    return Batch(source, np.ones_like(source, bool), inputs, labels, np.array([3, 100, 7, 20]))


def tensors(batch):
    return tuple(map(torch.from_numpy, (batch.source, batch.source_mask, batch.inputs)))


def chosen(model, batch, feeding, *, step=1, seed=0):
    return chosen_inputs(model, *tensors(batch), feeding=feeding, step=step, seed=seed, rows=batch.rows)


@pytest.mark.parametrize("names", COMBINATIONS[::3] + COMBINATIONS[1:4], ids="-".join)
def test_loss_and_gradients_are_those_of_going_step_by_step(names):
    """A plain loop that keeps its graph and feeds what it sees, against one call on chosen inputs; no dropout."""
    weights = random_weights(settings_of(*names))
    model = models.build(_without_dropout(settings_of(*names)), SIZES, weights)
    batch, total = make_batch(), 0.0
    source, mask, inputs = tensors(batch)
    memory = model.encode(source, mask)
    state, fed = model.initial_state(memory, 4), inputs[:, 0]
    for t in range(batch.labels.shape[1]):
        logits, state, _ = model.decode(fed.unsqueeze(1), memory, state)
        total = total + cross_entropy_sum(logits, torch.from_numpy(batch.labels[:, t : t + 1]))
        own = logits[:, -1, 2:].argmax(-1) + 2
        fed = own
    total.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    training = config.Training(max_steps=1, feeding=FREE, label_smoothing=0.0)
    loss = PairObjective(training, device=CPU).loss_sum(model, batch, step=1)
    loss.backward()
    assert loss.item() == pytest.approx(total.item(), abs=1e-9)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-10)


def _without_dropout(settings):
    sides = {name: getattr(settings, name).model_copy(update={"dropout": 0.0}) for name in ("encoder", "decoder")}
    return settings.model_copy(update=sides)


@pytest.mark.parametrize("names", COMBINATIONS[::4], ids="-".join)
def test_free_running_feeds_what_greedy_search_writes(names):
    model = build(*names)
    batch = make_batch()
    fed = chosen(model.train(), batch, FREE)
    assert model.training
    assert (fed[:, 0] == BOS).all()
    engine = TorchEngine(model, vocabulary_size=SIZES.target)
    for row, found in zip(fed[:, 1:].tolist(), greedy(engine, list(batch.source), max_length=6), strict=True):
        assert row[: len(found.ids)] == found.ids.tolist()


MODEL = ("bilstm", "lstm_general")


def test_the_truth_and_nothing_else_is_teacher_forcing():
    model, batch = build(*MODEL), make_batch()
    for feeding in (config.TeacherForcing(), scheduled(), scheduled(floor=1.0)):
        assert (chosen(model, batch, feeding) == torch.from_numpy(batch.inputs)).all()
    never = scheduled(decay="exponential", rate=1e-9)
    assert (chosen(model, batch, never, step=9) == chosen(model, batch, SAMPLES, step=9)).all()


def test_no_gradient_flows_through_what_is_fed():
    model = build(*MODEL).train()
    fed = chosen(model, make_batch(), SAMPLES)
    assert fed.dtype == torch.int64
    assert not fed.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_share_of_truth_is_the_probability():
    """Labels that no model says (unknown id 3 is never the most probable here) tell truth and own symbols apart."""
    model = build(*MODEL)
    with torch.no_grad():
        model.decoder.output.bias[3] = -1e9
    rows = np.arange(400)
    source = np.full((400, 2), 5)
    inputs = np.full((400, 9), 3)
    inputs[:, 0] = BOS
    batch = Batch(source, source > 0, inputs, inputs, rows)
    fed = chosen(model, batch, scheduled(rate=0.1, draw="sample"), step=4)
    assert (fed[:, 1:] == 3).double().mean().item() == pytest.approx(0.7, abs=0.03)
    by_place = (fed[:, 1:] == 3).double().mean(0)
    assert by_place.min() > 0.6
    assert by_place.max() < 0.8
    assert (fed[:, 1:] > BOS).all()


def test_samples_follow_the_distribution():
    model = build(*MODEL)
    source = np.full((4000, 2), 5)
    inputs = np.full((4000, 2), BOS)
    batch = Batch(source, source > 0, inputs, inputs, np.arange(4000))
    fed = chosen(model, batch, SAMPLES)[:, 1]
    one = torch.from_numpy(source[:1])
    memory = model.encode(one, one > 0)
    logits = model.decode(torch.tensor([[BOS]]), memory, model.initial_state(memory, 1)).logits[0, 0]
    logits[[PAD, BOS]] = -torch.inf
    expected = 4000 * torch.softmax(logits, 0).detach().numpy()
    counts = np.bincount(fed.numpy(), minlength=SIZES.target)
    assert counts[[PAD, BOS]].sum() == 0
    common = expected > 5
    assert ((counts[common] - expected[common]) ** 2 / expected[common]).sum() < 35  # about ten degrees of freedom


def test_chance_belongs_to_seed_step_row_and_place():
    model, batch = build(*MODEL), make_batch()
    feeding = scheduled(rate=0.5)
    whole = chosen(model, batch, feeding, step=2)
    few = Batch(
        batch.source[1:3], batch.source_mask[1:3], batch.inputs[1:3, :5], batch.labels[1:3, :5], batch.rows[1:3]
    )
    torch.testing.assert_close(chosen(model, few, feeding, step=2), whole[1:3, :5])
    assert (chosen(model, batch, feeding, step=2) == whole).all()
    others = [chosen(model, batch, SAMPLES, step=s, seed=d) for s, d in ((2, 0), (3, 0), (2, 1))]
    assert not (others[0] == others[1]).all()
    assert not (others[0] == others[2]).all()


# --- in a run --------------------------------------------------------------------------------------------------------


def test_a_run_with_samples_resumes_exactly(make_config, make_pairs, tmp_path):
    pairs = make_pairs(tmp_path / "pairs.tsv")
    feeding = scheduled(rate=0.05, floor=0.2)

    class StopError(Exception):
        pass

    def stop(event):
        if isinstance(event, StepTaken) and event.step == 12:
            raise StopError

    settings = make_config(feeding=feeding, max_steps=20, save_every=5)
    train(pairs, config=settings, out=tmp_path / "whole")
    with pytest.raises(StopError):
        train(pairs, config=settings, out=tmp_path / "part", listeners=[stop])
    train(resume=tmp_path / "part")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "part")]
    assert weights[0] == weights[1]
    train(pairs, config=make_config(max_steps=20, save_every=5), out=tmp_path / "true")
    assert (tmp_path / "true" / "model.safetensors").read_bytes() != weights[0]
