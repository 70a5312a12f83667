"""Gated convolutions: values by hand, finite differences, padding, and the PyTorch engine's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference_cases import TOLERANCE, make_batch, normal, random_weights

from unrolled import config, reference
from unrolled.parameters import Sizes
from unrolled.reference import gradient_check
from unrolled.reference.convolution import ConvolutionLayer, ConvolutionLayers

RNG = np.random.default_rng(0)
SIZES = Sizes(19, 4, 13)
SETTINGS = config.Seq2Seq(
    encoder=config.ConvolutionEncoder(channels=3, num_layers=2, dropout=0.0),
    decoder=config.ConvolutionDecoder(channels=5, kernel_size=2, num_layers=3, dropout=0.0),
)


def conv_weights(channels, kernel_size):
    return {"conv.weight": normal(RNG, 2 * channels, kernel_size * channels), "conv.bias": normal(RNG, 2 * channels)}


def test_values_by_hand():
    """One channel, W = [[1, 2], [0, 0]], b = 0: the gate is ½, and y_t = (x_{t−2} + 2 x_t) / 2 at dilation 2."""
    weights = {"conv.weight": np.array([[1.0, 2.0], [0.0, 0.0]]), "conv.bias": np.zeros(2)}
    layer = ConvolutionLayer(weights, kernel_size=2, dilation=2)
    x = np.array([1.0, 3.0, -2.0]).reshape(1, 3, 1)
    y, _ = layer.forward(x, np.concatenate([np.full((1, 2, 1), 4.0), x], axis=1))
    np.testing.assert_allclose(y.ravel() * math.sqrt(2), [1 + 3.0, 3 + 5.0, -2 - 1.5])


@pytest.mark.parametrize(("kernel_size", "dilation"), [(2, 1), (3, 2)])
def test_gradients_of_a_layer(kernel_size, dilation):
    layer = ConvolutionLayer(conv_weights(3, kernel_size), kernel_size=kernel_size, dilation=dilation)
    errors = gradient_check(layer, normal(RNG, 2, 5, 3), normal(RNG, 2, 5 + layer.reach, 3))
    assert max(errors.values()) < TOLERANCE, errors
    assert len(errors) == 4


class Stack:
    """An encoder's layers over ragged rows, with dropout between them."""

    def __init__(self):
        settings = config.ConvolutionEncoder(channels=3, num_layers=3, dropout=0.3)
        weights = {f"{n}.{name}": w for n in range(3) for name, w in conv_weights(3, 3).items()}
        self.layers = ConvolutionLayers(settings, weights)
        self.parameters = weights
        self.mask = np.arange(7) < np.array([[7], [4]])

    def forward(self, x):
        (y, finals), cache = self.layers.forward(x, None, self.mask, np.random.default_rng(3))
        assert finals == ()
        return y, cache

    def backward(self, d_y, cache):
        d_x, _, gradients = self.layers.backward(d_y, None, cache)
        return d_x, gradients


def test_gradients_of_a_stack():
    errors = gradient_check(Stack(), normal(RNG, 2, 7, 3))
    assert max(errors.values()) < TOLERANCE, errors


def test_padding_is_neutral_in_every_layer():
    stack, x = Stack(), normal(RNG, 2, 7, 3)
    alone, _ = stack.layers.forward(x[1:, :4], None, stack.mask[1:, :4])
    (together, _), _ = stack.layers.forward(x, None, stack.mask)
    np.testing.assert_allclose(together[1, :4], alone[0][0], rtol=0, atol=1e-12)
    x[1, 4:] = 100.0
    np.testing.assert_array_equal(stack.layers.forward(x, None, stack.mask)[0][0][1, :4], together[1, :4])


def built(module):
    return module.build(SETTINGS, SIZES, random_weights(SETTINGS, SIZES))


def test_a_whole_model_is_that_of_the_torch_engine():
    """Features beside the symbols, attention in each layer; loss and all gradients."""
    torch, models = pytest.importorskip("torch"), pytest.importorskip("unrolled.models")
    ours, theirs, batch = built(reference), built(models).eval(), make_batch()
    source, mask, inputs, labels = map(torch.tensor, (batch.source, batch.source_mask, batch.inputs, batch.labels))
    memory = theirs.encode(source, mask)
    expected = theirs.decode(inputs, memory, theirs.initial_state(memory, 4), need_attention=True)
    our_memory = ours.encode(batch.source, batch.source_mask)
    output = ours.decode(batch.inputs, our_memory, ours.initial_state(our_memory, 4), need_attention=True)
    np.testing.assert_allclose(output.logits, expected.logits.detach().numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(output.attention, expected.attention.detach().numpy(), rtol=0, atol=1e-12)
    loss = torch.nn.functional.cross_entropy(
        expected.logits.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum"
    )
    loss.backward()
    found = ours.loss_and_gradients(batch)
    assert found.loss == pytest.approx(loss.item(), abs=1e-11)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(found.gradients[name], parameter.grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_states_hold_what_later_steps_see():
    """Steps, ragged chunks and resets against one row alone, over more positions than the stack reaches."""
    model, batch = built(reference), make_batch()
    memory, tokens = model.encode(batch.source, batch.source_mask), RNG.integers(3, 13, (4, 20))
    state, lengths = model.initial_state(memory, 4), np.array([9, 1, 4, 0])
    assert [past.shape for past in state.layers] == [(4, 1, 5), (4, 2, 5), (4, 4, 5)]
    state = model.decode(tokens[:, :9], memory, state, mask=np.arange(9) < lengths[:, None]).state
    reset = np.zeros((4, 11), bool)
    reset[2, 5] = True
    later = model.decode(tokens[:, 9:], memory, state, reset=reset).logits
    for row, length in enumerate(lengths):
        alone = memory.select(np.array([row]))
        ids = np.concatenate([tokens[row, :length], tokens[row, 9:]])[None]
        expected = model.decode(ids, alone, model.initial_state(alone, 1)).logits[0, length:]
        if row == 2:
            fresh = model.decode(tokens[row : row + 1, 14:], alone, model.initial_state(alone, 1)).logits[0]
            expected = np.concatenate([expected[:5], fresh])
        np.testing.assert_allclose(later[row], expected, rtol=0, atol=1e-12)


def test_dropout_reaches_every_layer_and_its_gradient():
    """Along one random direction in weight space, the same masks at each call."""
    wet = SETTINGS.model_copy(update={"decoder": SETTINGS.decoder.model_copy(update={"dropout": 0.3})})
    weights, direction = random_weights(wet, SIZES), random_weights(wet, SIZES, seed=1)

    def loss(step):
        moved = {name: weight + step * direction[name] for name, weight in weights.items()}
        return reference.build(wet, SIZES, moved).loss_and_gradients(make_batch(), rng=np.random.default_rng(7))

    numerical = (loss(1e-6).loss - loss(-1e-6).loss) / 2e-6
    analytic = sum(float(np.vdot(gradient, direction[name])) for name, gradient in loss(0.0).gradients.items())
    assert analytic == pytest.approx(numerical, rel=1e-5)
