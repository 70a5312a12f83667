import copy

import numpy as np
import pytest
import torch
from torch import nn

from unrolled.config import (
    Optimizer,
    RecurrentDecoder,
    RecurrentEncoder,
    Seq2Seq,
    TransformerDecoder,
    TransformerEncoder,
)
from unrolled.models import DecoderOutput
from unrolled.text import collate
from unrolled.training import PairObjective, Stepper

CPU = torch.device("cpu")


def make_stepper(model, settings):
    return Stepper(model, PairObjective(settings, device=CPU), settings.optimizer)


class Table(nn.Module):
    """The smallest model that keeps the contract: logits are a row of weights, whatever is read."""

    def __init__(self, row):
        super().__init__()
        self.row = nn.Parameter(torch.tensor(row))
        self.matrix = nn.Parameter(torch.ones(2, 2))

    def encode(self, source, source_mask):
        return source

    def initial_state(self, memory, batch_size):
        return None

    def decode(self, tokens, memory, state, **options):
        return DecoderOutput((self.row + 0 * self.matrix.sum()).expand(*tokens.shape, -1), None, None)


class Steered(Table):
    """Its gradient is exactly the one it is given."""

    def decode(self, tokens, memory, state, **options):
        logits = torch.zeros(*tokens.shape, 3) + 0 * self.matrix.sum()
        return DecoderOutput(logits + Steer.apply(self.row, self.wanted), None, None)


class Steer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, row, wanted):
        ctx.wanted = wanted
        return torch.zeros(3)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.wanted, None


def steered(gradient):
    model = Steered([1.0, 2.0, 3.0])
    model.wanted = torch.tensor(gradient)
    return model


def test_clipping(settings, make_batch):
    model = steered([3.0, 4.0, 0.0])
    stepper = make_stepper(model, settings(optimizer=Optimizer(clip_norm=1.0)))
    numbers = stepper.launch([make_batch([1])], 1.0, step=1).read()
    assert numbers.gradient_norm == pytest.approx(5)
    assert numbers.non_finite is None
    torch.testing.assert_close(model.row.grad, torch.tensor([0.6, 0.8, 0.0]))


def test_small_gradients_are_left_alone(settings, make_batch):
    model = steered([0.3, 0.4, 0.0])
    stepper = make_stepper(model, settings(optimizer=Optimizer(clip_norm=1.0)))
    assert stepper.launch([make_batch([1])], 1.0, step=1).read().gradient_norm == pytest.approx(0.5)
    torch.testing.assert_close(model.row.grad, torch.tensor([0.3, 0.4, 0.0]))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_non_finite_gradient_changes_nothing(settings, make_batch, bad):
    model = steered([3.0, 4.0, 0.0])
    stepper = make_stepper(model, settings(optimizer=Optimizer(clip_norm=0.5)))
    stepper.launch([make_batch([1])], 1.0, step=1)
    weights, moments = stepper.weights(), stepper.moments()
    model.wanted = torch.tensor([0.4, bad, 2.3])
    assert stepper.launch([make_batch([1])], 1.0, step=1).read().non_finite == "row"
    for before, after in ((weights, stepper.weights()), (moments, stepper.moments())):
        assert all(np.array_equal(before[name], after[name]) for name in before)
    model.wanted = torch.tensor([3.0, 4.0, 0.0])
    assert stepper.launch([make_batch([1])], 1.0, step=1).read().non_finite is None
    assert not np.array_equal(weights["row"], stepper.weights()["row"])
    assert moments["steps/row"] + 1 == stepper.moments()["steps/row"] == 2


def test_the_loss_is_divided_once_by_all_labels(settings, make_batch):
    """One label of loss 4 and nine of loss 1: 13 / 10, not (4 + 1) / 2."""
    log_probs = np.log([1 - np.exp(-4) - np.exp(-1), np.exp(-4), np.exp(-1)])
    batches = [make_batch([1]), make_batch([2] * 9)]
    stepper = make_stepper(Table(log_probs.astype(np.float32)), settings(label_smoothing=0.0))
    assert stepper.launch(batches, 1.0, step=1).read().loss == pytest.approx(1.3, rel=1e-6)


def gradients(model, settings, batches):
    stepper = make_stepper(model, settings)
    stepper.launch(batches, 1.0, step=1)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("cut", [[5], [1], [2, 3], [9]])
def test_accumulated_parts_equal_one_batch(build, make_examples, settings, cut):
    examples, model = make_examples(10), build(dropout=0.0)
    order = np.argsort(examples.source.lengths)
    parts = [collate(examples, rows) for rows in np.split(order, cut)]
    whole = gradients(copy.deepcopy(model), settings(), [collate(examples, order)])
    summed = gradients(model, settings(), parts)
    for name in whole:
        torch.testing.assert_close(summed[name], whole[name], atol=1e-6, rtol=1e-5)


def test_a_part_without_labels_adds_nothing(settings, make_batch):
    real, empty = make_batch([1, 2]), make_batch([0, 0], [0, 0])
    alone, both = Table([0.0, 1.0, 2.0]), Table([0.0, 1.0, 2.0])
    expected = gradients(alone, settings(), [real])
    found = gradients(both, settings(), [empty, real])
    assert torch.equal(found["row"], expected["row"])


def test_only_matrices_decay(settings, make_batch):
    """A matrix that the loss does not depend on shrinks by rate times decay; a vector with no gradient stays."""
    model = steered([0.0, 0.0, 0.0])
    rule = Optimizer(learning_rate=0.1, weight_decay=0.5)
    make_stepper(model, settings(optimizer=rule)).launch([make_batch([1])], 0.5, step=1)
    torch.testing.assert_close(model.matrix.detach(), torch.full((2, 2), 1 - 0.1 * 0.5 * 0.5))
    assert torch.equal(model.row.detach(), torch.tensor([1.0, 2.0, 3.0]))


def test_two_steps_of_adam_by_hand(settings, make_batch):
    rule = Optimizer(learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.0, clip_norm=100.0)
    model = steered([1.0, -2.0, 0.5])
    stepper = make_stepper(model, settings(optimizer=rule))
    weights, first, second = np.array([1.0, 2.0, 3.0]), np.zeros(3), np.zeros(3)
    for step, factor in ((1, 0.5), (2, 1.0)):
        gradient = np.array([1.0, -2.0, 0.5]) * step
        model.wanted = torch.tensor(gradient, dtype=torch.float32)
        stepper.launch([make_batch([1])], factor, step=1)
        first, second = 0.8 * first + 0.2 * gradient, 0.9 * second + 0.1 * gradient**2
        update = first / (1 - 0.8**step) / (np.sqrt(second / (1 - 0.9**step)) + 1e-3)
        weights = weights - 0.1 * factor * update
        np.testing.assert_allclose(stepper.weights()["row"], weights, rtol=1e-5)


def test_moments_and_weights_carry_over_exactly(build, make_examples, settings):
    examples = make_examples(12)
    batches = [collate(examples, rows) for rows in np.array_split(np.arange(12), 3)]
    one, other = make_stepper(build(), settings()), make_stepper(build(seed=5), settings())
    one.launch(batches[:1], 1.0, step=1)
    other.load_weights(one.weights())
    other.load_moments(one.moments())
    for stepper in (one, other):
        torch.manual_seed(3)
        stepper.launch(batches[1:], 1.0, step=1)
    for name, value in one.weights().items():
        assert np.array_equal(value, other.weights()[name])


MODELS = {
    "transformer": Seq2Seq(
        encoder=TransformerEncoder(d_model=8, d_ff=8, num_layers=1, num_heads=2),
        decoder=TransformerDecoder(d_model=8, d_ff=8, num_layers=1, num_heads=2),
    ),
    "lstm": Seq2Seq(encoder=RecurrentEncoder(hidden_size=8), decoder=RecurrentDecoder(hidden_size=8)),
    "gru": Seq2Seq(
        encoder=RecurrentEncoder(cell="gru", hidden_size=8), decoder=RecurrentDecoder(cell="gru", hidden_size=8)
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_bfloat16_runs_under_autocast_with_float32_weights(build, make_examples, settings, model):
    examples = make_examples(8)
    batch = [collate(examples, np.arange(8))]
    losses = {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        stepper = make_stepper(build(model=MODELS[model]), settings(precision=precision))
        losses[precision] = stepper.launch(batch, 1.0, step=1).read().loss
        assert all(value.dtype == np.float32 for value in (stepper.weights() | stepper.moments()).values())
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
