"""Gated convolutions: PyTorch's own, values by hand, reach, start values, and settings that make no sense."""

import math

import pytest
import torch
from conftest_models import SIZES, random_weights
from pydantic import ValidationError
from torch.nn import functional

from unrolled import config, models
from unrolled.models.convolution import ConvolutionLayer
from unrolled.parameters import Sizes, initialise, inventory


def layer_of(channels, kernel_size, dilation):
    torch.manual_seed(0)
    return ConvolutionLayer(config.Convolution(channels=channels, kernel_size=kernel_size), dilation).double()


@pytest.mark.parametrize(("kernel_size", "dilation"), [(2, 1), (3, 3), (5, 2)])
def test_a_layer_is_a_gated_dilated_convolution(kernel_size, dilation):
    layer, x = layer_of(5, kernel_size, dilation), torch.randn(2, 11, 5, dtype=torch.float64)
    weight = layer.conv.weight.view(10, kernel_size, 5).transpose(1, 2)  # (2C, k·C) -> (2C, C, k)
    padded = functional.pad(x.transpose(1, 2), (layer.reach, 0))
    value, gate = functional.conv1d(padded, weight, layer.conv.bias, dilation=dilation).transpose(1, 2).chunk(2, -1)
    expected = (x + value * torch.sigmoid(gate)) / math.sqrt(2)
    around = torch.cat([torch.zeros(2, layer.reach, 5, dtype=torch.float64), x], dim=1)
    torch.testing.assert_close(layer.convolve(x, around), expected, rtol=0, atol=1e-12)


def test_values_by_hand():
    """One channel, W = [[1, 2], [0, 0]], b = 0: the gate is ½, and y_t = (x_{t−1} + 2 x_t) / 2."""
    layer = layer_of(1, 2, 1)
    layer.conv.weight.data = torch.tensor([[1.0, 2.0], [0.0, 0.0]]).double()
    layer.conv.bias.data.zero_()
    x = torch.tensor([1.0, 3.0, -2.0]).double().view(1, 3, 1)
    y = layer.convolve(x, functional.pad(x, (0, 0, 1, 0))).flatten() * math.sqrt(2)
    torch.testing.assert_close(y, torch.tensor([1 + 1.0, 3 + 3.5, -2 - 0.5]).double())


@pytest.mark.parametrize(("kernel_size", "is_dilated", "reach"), [(2, True, 8), (3, True, 27), (3, False, 7)])
def test_an_output_sees_as_far_as_the_stack_reaches(kernel_size, is_dilated, reach):
    decoder = config.ConvolutionDecoder(channels=4, kernel_size=kernel_size, num_layers=3, is_dilated=is_dilated)
    settings = config.LanguageModel(decoder=decoder)
    model = models.build(settings, SIZES, random_weights(settings)).eval()
    tokens = torch.arange(30).unsqueeze(0) % SIZES.target
    last = model.decode(tokens, None, model.initial_state(None, 1)).logits[0, -1]
    seen = []
    for before in range(30):
        changed = tokens.clone()
        changed[0, 29 - before] = (changed[0, 29 - before] + 1) % SIZES.target
        seen.append(not torch.equal(model.decode(changed, None, model.initial_state(None, 1)).logits[0, -1], last))
    assert seen == [before < reach for before in range(30)]


def test_the_state_knows_no_position():
    """After the same last inputs it is the same, however much went before."""
    settings = config.LanguageModel(decoder=config.ConvolutionDecoder(channels=4, kernel_size=2, num_layers=3))
    model = models.build(settings, SIZES, random_weights(settings)).eval()
    end = torch.randint(0, SIZES.target, (1, 7), generator=torch.Generator().manual_seed(0))
    states = []
    for length in (3, 12):
        start = torch.full((1, length), 5)
        states.append(model.decode(torch.cat([start, end], dim=1), None, model.initial_state(None, 1)).state)
    for short, long in zip(*(state.layers for state in states), strict=True):
        torch.testing.assert_close(short, long, rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_tied", [False, True])
def test_all_layers_start_with_one_variance_and_the_loss_near_ln_v(is_tied):
    sizes = Sizes(0, 0, 100)
    decoder = config.ConvolutionDecoder(channels=128, num_layers=6, dropout=0.0, tie_embeddings=is_tied)
    settings = config.LanguageModel(decoder=decoder)
    model = models.build(settings, sizes, initialise(inventory(settings, sizes), seed=1)).eval()
    tokens = torch.randint(0, 100, (8, 1000), generator=torch.Generator().manual_seed(0))
    output = model.decode(tokens, None, model.initial_state(None, 8))
    loss = functional.cross_entropy(output.logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
    assert abs(loss.item() - math.log(100)) < (0.05 if is_tied else 0.3)
    deviations = [past[:, -10:].std().item() for past in output.state.layers]
    assert deviations[-1] == pytest.approx(deviations[0], rel=0.3)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValidationError, match="a centred convolution needs an odd kernel_size, got 4"):
        config.ConvolutionEncoder(kernel_size=4)
    with pytest.raises(ValidationError, match="kernel_size=3 over num_layers=12 reaches over 531441 positions"):
        config.ConvolutionDecoder(num_layers=12)
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        config.ConvolutionDecoder(kernel_size=1)
    with pytest.raises(ValidationError, match="attention=dot needs equal sizes, got encoder output 8 and decoder"):
        config.Seq2Seq(encoder=config.ConvolutionEncoder(channels=8), decoder=config.RecurrentDecoder(attention="dot"))
    assert config.ConvolutionDecoder(num_layers=12, is_dilated=False).num_layers == 12
