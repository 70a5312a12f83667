"""Models of vectors and their heads: one contract, two engines, losses by their definitions."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from conftest_models import random_weights
from hypothesis import given
from hypothesis import strategies as st

from unrolled import config, models, reference
from unrolled.models.heads import HEADS as TORCH_HEADS
from unrolled.parameters import Sizes, inventory
from unrolled.reference.gradient_check import gradient_check
from unrolled.reference.heads import HEADS as NUMPY_HEADS

SIZES = Sizes(source=5, features=0, target=7)
DECODERS = {
    "lstm2": config.FrameDecoder(hidden_size=11, num_layers=2, dropout=0.3),
    "ungated": config.FrameDecoder(hidden_size=11, forget_gate=False),
    "gru": config.FrameDecoder(cell="gru", hidden_size=11, dropout=0.3),
    "gru before": config.FrameDecoder(cell="gru", reset="before", hidden_size=11),
    "relu": config.FrameDecoder(cell="rnn", nonlinearity="relu", hidden_size=11, num_layers=2),
}
each_decoder = pytest.mark.parametrize("decoder", DECODERS)
each_head = pytest.mark.parametrize("head", NUMPY_HEADS)
B, T = 3, 6


class Batch(NamedTuple):
    inputs: np.ndarray
    labels: np.ndarray
    counted: np.ndarray


def make_batch(head="bernoulli", seed=0):
    rng = np.random.default_rng(seed)
    labels = {
        "categorical": rng.integers(0, 7, (B, T)),
        "bernoulli": rng.integers(0, 2, (B, T, 7)).astype(float),
        "regression": rng.normal(size=(B, T, 7)),
    }[head]
    return Batch(rng.normal(size=(B, T, 5)), labels, np.arange(T) < np.array([6, 2, 4])[:, None])


def settings_of(decoder="lstm2", head="bernoulli"):
    return config.Frames(decoder=DECODERS[decoder], head=head)


def both(decoder="lstm2", head="bernoulli"):
    settings = settings_of(decoder, head)
    weights = random_weights(settings, SIZES)
    return models.build(settings, SIZES, weights).eval(), reference.build(settings, SIZES, weights)


def read(model, inputs, **options):
    state = model.initial_state(None, len(inputs))
    return model.decode(torch.from_numpy(inputs), None, state, **options)


# --- the contract ----------------------------------------------------------------------------------------------------


@each_decoder
@pytest.mark.parametrize("chunks", [[1] * 6, [2, 3, 1]], ids=str)
def test_whole_equals_chunks(decoder, chunks):
    model, _ = both(decoder)
    inputs = make_batch().inputs
    whole, state, parts = read(model, inputs), model.initial_state(None, B), []
    for part in torch.from_numpy(inputs).split(chunks, dim=1):
        output = model.decode(part, None, state)
        parts.append(output.logits)
        state = output.state
    torch.testing.assert_close(torch.cat(parts, 1), whole.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, whole.state, rtol=0, atol=1e-12)


@each_decoder
def test_no_output_depends_on_what_comes_later(decoder):
    model, _ = both(decoder)
    inputs = torch.from_numpy(make_batch().inputs).requires_grad_()
    outputs = model.decode(inputs, None, model.initial_state(None, B)).logits
    for t in range(T):
        (gradient,) = torch.autograd.grad(outputs[:, t].sum(), inputs, retain_graph=True)
        assert (gradient[:, t + 1 :] == 0).all()
        assert (gradient[:, : t + 1] != 0).any(dim=-1).all()


def test_a_reset_forgets_and_padding_is_not_read():
    model, ours = both()
    inputs, counted = make_batch().inputs, make_batch().counted
    reset = np.zeros((B, T), bool)
    reset[0, 2] = reset[2, 3] = reset[1, 4] = True  # the last one at padding, where it means nothing
    output = read(model, inputs, mask=torch.from_numpy(counted), reset=torch.from_numpy(reset))
    fresh = read(model, inputs[:, 2:])
    torch.testing.assert_close(output.logits[0, 2:], fresh.logits[0], rtol=0, atol=1e-12)
    whole = read(model, inputs[:, :2])
    torch.testing.assert_close(output.state.layers[0].h[1], whole.state.layers[0].h[1], rtol=0, atol=1e-12)
    theirs = ours.decode(inputs, None, ours.initial_state(None, B), mask=counted, reset=reset)
    np.testing.assert_allclose(theirs.logits[counted], output.logits.detach().numpy()[counted], rtol=0, atol=1e-12)


def test_dropout_acts_in_training_alone():
    model, _ = both()
    inputs = make_batch().inputs
    assert (read(model, inputs).logits == read(model, inputs).logits).all()
    model.train()
    assert not (read(model, inputs).logits == read(model, inputs).logits).all()


def test_the_inventory_is_that_of_the_layers_alone():
    shapes = {parameter.name: parameter.shape for parameter in inventory(settings_of("gru"), SIZES)}
    assert shapes["decoder.layers.0.fwd.weight_ih"] == (33, 5)
    assert shapes["decoder.output.weight"] == (7, 11)
    assert len(shapes) == 6


# --- two engines -----------------------------------------------------------------------------------------------------


@each_decoder
@each_head
def test_outputs_losses_and_gradients_agree(decoder, head):
    theirs, ours = both(decoder, head)
    batch = make_batch(head)
    outputs = read(theirs, batch.inputs).logits
    loss = theirs.head.loss_sum(outputs, torch.from_numpy(batch.labels), torch.from_numpy(batch.counted))
    loss.backward()
    found = ours.loss_and_gradients(batch)
    mine = ours.decode(batch.inputs, None, ours.initial_state(None, B)).logits
    np.testing.assert_allclose(mine, outputs.detach().numpy(), rtol=0, atol=1e-12)
    assert found.loss == pytest.approx(loss.item(), rel=1e-12)
    assert found.num_labels == 12
    assert found.gradients.keys() == dict(theirs.named_parameters()).keys()
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(found.gradients[name], parameter.grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


@each_head
@pytest.mark.parametrize("decoder", ["lstm2", "gru before"])
def test_finite_differences(decoder, head):
    settings = config.Frames(decoder=DECODERS[decoder].model_copy(update={"hidden_size": 2}), head=head)
    model = reference.build(settings, Sizes(2, 0, 7), random_weights(settings, Sizes(2, 0, 7)))
    batch = make_batch(head)
    labels = batch.labels

    class Loss:
        parameters = model.parameters

        def forward(self, inputs):
            return model.forward(inputs, labels, batch.counted)

        def backward(self, d_loss, cache):
            return model.backward(d_loss, cache)

    errors = gradient_check(Loss(), batch.inputs[..., :2].copy())
    assert max(errors.values()) < 1e-6, errors


# --- heads -----------------------------------------------------------------------------------------------------------


def loss_of(head, outputs, labels, counted):
    loss, cache = NUMPY_HEADS[head].forward(outputs, labels, counted)
    theirs = TORCH_HEADS[head].loss_sum(*map(torch.from_numpy, (outputs, labels, counted)))
    assert theirs.item() == pytest.approx(float(loss), rel=1e-12, abs=1e-12)
    return float(loss), NUMPY_HEADS[head].backward(1.0, cache)


def test_losses_by_hand():
    counted = np.array([[True, False]])
    zeros = np.zeros((1, 2, 88))
    assert loss_of("bernoulli", zeros, zeros, counted)[0] == pytest.approx(88 * math.log(2))
    outputs, labels = np.array([[[2.0, -1.0], [9.0, 9.0]]]), np.array([[[1.0, 1.0], [0.0, 0.0]]])
    expected = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))
    assert loss_of("bernoulli", outputs, labels, counted)[0] == pytest.approx(expected)
    assert loss_of("regression", outputs, labels, counted)[0] == pytest.approx(1 + 4)
    ids = np.array([[1, 0]])
    assert loss_of("categorical", outputs, ids, counted)[0] == pytest.approx(math.log(1 + math.exp(3)))


@pytest.mark.filterwarnings("error")
@given(st.floats(-1e30, 1e30), st.sampled_from([0.0, 1.0]))
def test_the_bernoulli_loss_never_overflows(output, label):
    outputs, labels = np.full((1, 1, 1), output), np.full((1, 1, 1), label)
    loss, d_outputs = loss_of("bernoulli", outputs, labels, np.ones((1, 1), bool))
    assert math.isfinite(loss)
    assert loss >= 0
    assert abs(d_outputs).max() <= 1


@each_head
def test_what_does_not_count_costs_nothing(head):
    batch = make_batch(head)
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(B, T, 7))
    loss, d_outputs = loss_of(head, outputs, batch.labels, batch.counted)
    others = np.where(batch.counted[..., None], outputs, rng.normal(size=outputs.shape))
    assert loss_of(head, others, batch.labels, batch.counted)[0] == pytest.approx(loss)
    assert (d_outputs[~batch.counted] == 0).all()
    assert (d_outputs[batch.counted] != 0).all()


N = 40_000


def draws(head, outputs):
    """From both engines: outputs (O,) at N places."""
    many = np.broadcast_to(outputs, (1, N, len(outputs))).copy()
    ours = NUMPY_HEADS[head].sample(many, np.random.default_rng(0))
    theirs = TORCH_HEADS[head].sample(torch.from_numpy(many), torch.Generator().manual_seed(0)).numpy()
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    return ours[0], theirs[0]


def test_samples_follow_the_distribution():
    outputs = np.array([0.3, -1.2, 2.0])
    for ids in draws("categorical", outputs):
        shares = np.bincount(ids, minlength=3) / N
        np.testing.assert_allclose(shares, np.exp(outputs) / np.exp(outputs).sum(), atol=0.01)
    for keys in draws("bernoulli", outputs):
        assert set(np.unique(keys)) == {0.0, 1.0}
        np.testing.assert_allclose(keys.mean(axis=0), 1 / (1 + np.exp(-outputs)), atol=0.01)
    for numbers in draws("regression", outputs):
        np.testing.assert_allclose(numbers.mean(axis=0), outputs, atol=0.02)
        np.testing.assert_allclose(numbers.var(axis=0), 0.5, atol=0.02)
