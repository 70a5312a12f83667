"""Attention, positions and dropout: values worked out by hand, and every precision."""

import math

import pytest
import torch
from torch.nn import functional

from unrolled.models.attention import (
    Additive,
    Dot,
    General,
    ScaledDot,
    _plain_attention,
    dot_product_attention,
    dot_product_weights,
    join_heads,
    masked_softmax,
    split_heads,
)
from unrolled.models.dropout import dropout
from unrolled.models.positions import rotated, sinusoids, turns
from unrolled.models.sight import causal_mask

HALF = {torch.float64: 1e-6, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", HALF)
def test_weights_lie_on_real_tokens(dtype):
    output = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]], dtype=dtype)
    query = torch.tensor([[[2.0, 0.0]]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, True, False, False]])
    weights = masked_softmax(Dot(2, 2).scores(output)(query), mask.unsqueeze(1))
    expected = torch.tensor([[[0.880797, 0.119203, 0.0, 0.0]]], dtype=dtype)
    torch.testing.assert_close(weights, expected, rtol=0, atol=HALF[dtype])
    torch.testing.assert_close(weights @ output, expected[..., :2], rtol=0, atol=HALF[dtype])
    (weights @ output).sum().backward()
    assert torch.isfinite(query.grad).all()


@pytest.mark.parametrize("dtype", HALF)
def test_a_row_without_keys_gives_zero_and_finite_gradients(dtype):
    scores = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, True, True], [False, False, False]])
    weights = masked_softmax(scores, mask)
    assert (weights[1] == 0).all()
    torch.testing.assert_close(weights[0], torch.softmax(scores[0], -1))
    weights[0, 0].backward()
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[1] == 0).all()


def test_softmax_is_over_the_source_axis():
    scores = torch.tensor([[[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0]]])
    weights = masked_softmax(scores, torch.ones(2, 1, 3, dtype=torch.bool))
    expected = torch.tensor([0.090031, 0.244728, 0.665241]).expand(2, 1, 3)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)


def test_softmax_is_over_allowed_keys_whatever_the_scores():
    scores = torch.tensor([[-3e38, -3e38, 5.0]])
    weights = masked_softmax(scores, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.5, 0.0]]))


def test_scores():
    generator = torch.Generator().manual_seed(0)
    query, output = torch.randn(2, 3, 5, generator=generator), torch.randn(2, 7, 5, generator=generator)
    inner = torch.einsum("bnh,bsh->bns", query, output)
    torch.testing.assert_close(Dot(5, 5).scores(output)(query), inner)
    torch.testing.assert_close(ScaledDot(5, 5).scores(output)(query), inner / math.sqrt(5))
    wide = torch.randn(2, 7, 11, generator=generator)
    general, additive = General(11, 5), Additive(11, 5)
    torch.nn.init.normal_(additive.v)
    expected = torch.einsum("bnh,hm,bsm->bns", query, general.key.weight, wide)
    torch.testing.assert_close(general.scores(general.keys(wide))(query), expected)
    joined = torch.tanh(additive.query(query)[:, :, None] + additive.key(wide)[:, None])
    torch.testing.assert_close(additive.scores(additive.keys(wide))(query), (joined * additive.v).sum(-1))


def test_scale_is_by_head_dim_not_by_width():
    """Width 64, 4 heads: q·k = 16 for one key and 0 for the other."""
    query = torch.zeros(1, 1, 64)
    query[..., :16] = 1.0
    keys = torch.zeros(1, 2, 64)
    keys[:, 0, :16] = 1.0
    heads = [split_heads(x, 4) for x in (query, keys)]
    everything = torch.ones(1, 1, 1, 2, dtype=torch.bool)
    weights = dot_product_weights(*heads, everything)[0, 0, 0]
    torch.testing.assert_close(weights, torch.tensor([0.982014, 0.017986]), rtol=0, atol=1e-6)
    values = torch.eye(2).expand(1, 4, 2, 2)
    values = functional.pad(values, (0, 14))
    context = dot_product_attention(*heads, values, everything)[0, 0, 0, :2]
    torch.testing.assert_close(context, weights, rtol=0, atol=1e-6)


def test_heads_split_and_join():
    x = torch.arange(24.0).view(1, 2, 12)
    heads = split_heads(x, 3)
    assert heads.shape == (1, 3, 2, 4)
    assert torch.equal(heads[0, 1, 0], x[0, 0, 4:8])
    assert torch.equal(join_heads(heads), x)


def test_causal_values():
    """All scores 0, values 1, 10, 100: running means; an inverted or strict mask gives other numbers."""
    zeros = torch.zeros(1, 1, 3, 1)
    values = torch.tensor([1.0, 10.0, 100.0]).view(1, 1, 3, 1)
    result = dot_product_attention(zeros, zeros, values, None, causal=True).flatten()
    torch.testing.assert_close(result, torch.tensor([1.0, 5.5, 37.0]))


@pytest.mark.parametrize("kind", ["open", "causal", "masked", "empty"])
def test_short_and_long_sequences_take_two_ways_to_one_result(kind):
    """Up to head_dim keys the plain products, above PyTorch's kernel: the same outputs and gradients."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, 7, 5)  # 7 keys of size 5: the kernel
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(3)]
    mask = torch.rand(2, 1, 7, 7, generator=generator) < 0.6
    mask |= torch.eye(7, dtype=torch.bool)
    if kind == "empty":
        mask[1] = False
    mask = mask if kind in ("masked", "empty") else None
    outcomes = []
    for attend in (dot_product_attention, _plain_attention):
        result = attend(*inputs, mask, causal=kind == "causal")
        scale = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view_as(result)
        outcomes.append([result, *torch.autograd.grad((result * scale).sum(), inputs)])
    for kernel, plain in zip(*outcomes, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=0, atol=1e-12)
    if kind == "empty":
        assert (outcomes[0][0][1] == 0).all()


def test_causal_alignment_is_bottom_right():
    allowed = causal_mask(None, 2, 3, torch.device("cpu"))
    expected = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    assert torch.equal(allowed, expected)
    assert causal_mask(None, 0, 3, torch.device("cpu")) is None
    assert causal_mask(None, 4, 1, torch.device("cpu")) is None


def test_padded_keys_of_the_past_are_hidden_and_no_row_is_empty():
    valid = torch.tensor([[True, False, True, True], [False, False, False, False]])
    allowed = causal_mask(valid, 2, 2, torch.device("cpu"))
    assert torch.equal(allowed[0, 0], torch.tensor([[1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool))
    assert torch.equal(allowed[1, 0], torch.tensor([[0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool))


# --- positions -------------------------------------------------------------------------------------------------------


def test_sinusoids_of_an_odd_width():
    expected = torch.tensor(
        [
            [0, 1, 0, 1, 0],
            [0.841471, 0.540302, 0.025116, 0.999685, 0.000631],
            [0.909297, -0.416147, 0.050217, 0.998738, 0.001262],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(sinusoids(torch.arange(3), 5), expected, rtol=0, atol=1e-6)


def test_rotary_products_depend_on_distance_alone():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 1, 6, dtype=torch.float64, generator=generator)

    def turn(position):
        return turns(torch.tensor([[position]]), 6, torch.float64)

    def product(a, b):
        return (rotated(query, turn(a)) * rotated(key, turn(b))).sum()

    torch.testing.assert_close(product(3, 1), product(1003, 1001), rtol=0, atol=1e-10)
    assert (product(3, 1) - product(3, 2)).abs() > 1e-3
    assert torch.equal(rotated(query, turn(0)), query)


def test_rotary_turns_interleaved_pairs():
    x = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64).view(1, 1, 1, 1, 4)
    turned = rotated(x, turns(torch.tensor([[2]]), 4, torch.float64)).flatten()
    slow = 2 / 100
    expected = [math.cos(2), math.sin(2), -math.sin(slow), math.cos(slow)]
    torch.testing.assert_close(turned, torch.tensor(expected, dtype=torch.float64))


# --- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.99])
def test_dropout_drops_its_share_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    x = torch.ones(400_001)
    y = dropout(x, rate, True)
    share = (y == 0).double().mean().item()
    deviation = math.sqrt(rate * (1 - rate) / len(x))
    assert abs(share - rate) < 1 / 512 + 5 * deviation
    assert abs(y.double().mean().item() - 1) < 6 * deviation / (1 - rate)
    kept = y[y != 0]
    assert (kept == kept[0]).all()


def test_dropout_uses_every_byte_alike_and_follows_the_seed():
    torch.manual_seed(3)
    first = dropout(torch.ones(80_000), 0.5, True)
    shares = (first.view(-1, 8) == 0).double().mean(0)
    assert ((shares - 0.5).abs() < 0.03).all()
    neighbours = ((first[:-1] == 0) & (first[1:] == 0)).double().mean().item()
    assert abs(neighbours - 0.25) < 0.02
    torch.manual_seed(3)
    assert torch.equal(dropout(torch.ones(80_000), 0.5, True), first)
    assert not torch.equal(dropout(torch.ones(80_000), 0.5, True), first)


def test_dropout_has_the_gradient_of_its_mask():
    torch.manual_seed(0)
    x = torch.randn(50, 3, requires_grad=True)
    y = dropout(x, 0.4, True)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)


def test_dropout_is_nothing_outside_of_training():
    x = torch.randn(5)
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x
