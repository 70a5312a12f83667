"""Blocks of a Transformer: finite differences in every variant, dropout drawn once, PyTorch's layers."""

from __future__ import annotations

import numpy as np
import pytest
from reference_cases import TOLERANCE, normal

from unrolled import config
from unrolled.errors import ShapeError
from unrolled.reference import gradient_check
from unrolled.reference.attention import Visible
from unrolled.reference.layer import named
from unrolled.reference.layers import Embedding, FeedForward, LayerNorm, Linear, Output
from unrolled.reference.multihead import CrossAttention, KeysValues, SelfAttention
from unrolled.reference.transformer import DecoderLayer, EncoderLayer, Ends

D, F, N, B, T, S, M = 6, 5, 3, 2, 4, 3, 7
RNG = np.random.default_rng(0)
MASK = np.array([[True] * S, [True, False, False]])


def linear(outputs, inputs):
    return {"weight": normal(RNG, outputs, inputs), "bias": normal(RNG, outputs)}


def norm():
    return {"weight": normal(RNG, D), "bias": normal(RNG, D)}


def feed_forward(activation):
    weights = {**named("up", linear(F, D)), **named("down", linear(D, F))}
    return {**weights, **named("gate", linear(F, D))} if activation == "swiglu" else weights


def self_attention():
    return {**named("qkv", linear(3 * D, D)), **named("out", linear(D, D))}


def cross_attention():
    return {**named("query", linear(D, D)), **named("kv", linear(2 * D, M)), **named("out", linear(D, D))}


def settings(kind=config.TransformerEncoder, **options):
    return kind(d_model=D, d_ff=F, num_layers=1, num_heads=N, **options)


class Bound:
    """A layer with the inputs bound that have no gradient; ``rng`` is made anew at each call."""

    def __init__(self, layer, *bound, rng_seed=None, **options):
        self.layer, self.bound, self.options, self.seed = layer, bound, options, rng_seed
        self.parameters = layer.parameters

    def forward(self, *inputs):
        generator = {} if self.seed is None else {"rng": np.random.default_rng(self.seed)}
        return self.layer.forward(*inputs, *self.bound, **self.options, **generator)

    def backward(self, *arguments):
        return self.layer.backward(*arguments)


def check(layer, *inputs):
    errors = gradient_check(layer, *inputs)
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("parameters", [linear(5, 3), {"weight": normal(RNG, 5, 3)}])
def test_linear_with_and_without_bias(parameters):
    check(Linear(parameters), normal(RNG, 2, 4, 3))


def test_layer_norm():
    check(LayerNorm(norm()), normal(RNG, 2, 4, D))


def test_dropout_of_an_embedding_is_the_same_wherever_a_symbol_stands():
    layer = Embedding({"weight": np.ones((5, 40))}, dropout=0.5)
    ids = np.array([[1, 2], [2, 1]])
    y, _ = layer.forward(ids, np.random.default_rng(0))
    np.testing.assert_array_equal(y[0, 0], y[1, 1])
    np.testing.assert_array_equal(y[0, 1], y[1, 0])
    assert not np.array_equal(y[0, 0], y[0, 1])
    check(Bound(layer, ids, rng_seed=3))
    np.testing.assert_array_equal(Embedding(layer.parameters).forward(ids, np.random.default_rng(0))[0], 1.0)


@pytest.mark.parametrize("weight", ["output.weight", "embedding.weight"])
def test_output_layer_free_or_tied(weight):
    layer = Output({"output.bias": normal(RNG, 5), weight: normal(RNG, 5, 3)})
    check(layer, normal(RNG, 2, 4, 3))


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("seed", [None, 3])
def test_feed_forward(activation, seed):
    layer = FeedForward(settings(activation=activation, dropout=0.3), feed_forward(activation))
    check(Bound(layer, rng_seed=seed), normal(RNG, B, T, D))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_self_attention(positions):
    layer = SelfAttention(settings(positions=positions), self_attention())
    at = np.array([[0, 1, 2, 3], [0, 0, 1, 5]])
    visible = Visible(np.array([[True] * T, [True, True, False, True]]), is_causal=True)
    check(Bound(layer, at, visible), normal(RNG, B, T, D))


def test_self_attention_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    weights, x = self_attention(), normal(RNG, B, T, D)
    module = torch.nn.MultiheadAttention(D, N, batch_first=True).double()
    module.load_state_dict(
        {
            "in_proj_weight": torch.tensor(weights["qkv.weight"]),
            "in_proj_bias": torch.tensor(weights["qkv.bias"]),
            "out_proj.weight": torch.tensor(weights["out.weight"]),
            "out_proj.bias": torch.tensor(weights["out.bias"]),
        }
    )
    keys = np.array([[True] * T, [True, True, False, True]])
    y, cache = SelfAttention(settings(), weights).forward(x, np.zeros((B, T), int), Visible(keys))
    tensor = torch.tensor(x, requires_grad=True)
    theirs, _ = module(tensor, tensor, tensor, key_padding_mask=torch.tensor(~keys))
    theirs.sum().backward()
    d_x, gradients = SelfAttention(settings(), weights).backward(np.ones_like(y), cache)
    np.testing.assert_allclose(y, theirs.detach().numpy(), atol=1e-13)
    np.testing.assert_allclose(d_x, tensor.grad.numpy(), atol=1e-12)
    np.testing.assert_allclose(gradients["qkv.weight"], module.in_proj_weight.grad.numpy(), atol=1e-12)


PLACES = np.tile(np.arange(S), (B, 1))


@pytest.mark.parametrize("is_rotary", [False, True])
def test_cross_attention_of_two_rows_a_source(is_rotary):
    layer = CrossAttention(cross_attention(), num_heads=N, is_rotary=is_rotary)
    steps = np.arange(2 * B)[:, None] + np.arange(T)  # each row somewhere else

    class Whole:
        parameters = layer.parameters

        def forward(self, x, output):
            memory, prepared = layer.prepare(output, PLACES)
            y, cache = layer.forward(x, memory, MASK, steps)
            return y, (prepared, cache)

        def backward(self, d_y, cache):
            d_x, d_memory, found = layer.backward(d_y, cache[1])
            d_output, prepared = layer.prepare_backward(d_memory, cache[0])
            return d_x, d_output, {**found, **prepared}

    check(Whole(), normal(RNG, 2 * B, T, D), normal(RNG, B, S, M))


def test_weights_of_cross_attention_give_the_context():
    layer = CrossAttention({**cross_attention(), "out.weight": np.eye(D), "out.bias": np.zeros(D)}, num_heads=N)
    memory, _ = layer.prepare(normal(RNG, B, S, M), PLACES)
    y, cache = layer.forward(normal(RNG, 3 * B, T, D), memory, MASK)
    weights = layer.weights(cache, 3 * B)
    assert weights.shape == (3 * B, N, T, S)
    context = np.einsum("rnts,rnsk->rtnk", weights, np.repeat(memory.values, 3, axis=0))
    np.testing.assert_allclose(context.reshape(y.shape), y, atol=1e-13)


def test_rotary_cross_attention_sees_how_far_apart_target_and_source_stand():
    layer = CrossAttention(cross_attention(), num_heads=N, is_rotary=True)
    x, output, steps = normal(RNG, B, T, D), normal(RNG, B, S, M), np.tile(np.arange(T), (B, 1))

    def attended(target_shift, source_shift):
        memory, _ = layer.prepare(output, np.tile(np.arange(S), (B, 1)) + source_shift)
        return layer.forward(x, memory, MASK, steps + target_shift)[0]

    np.testing.assert_allclose(attended(7, 7), attended(0, 0), atol=1e-12)
    assert np.abs(attended(1, 0) - attended(0, 0)).max() > 1e-2
    assert np.abs(attended(0, 1) - attended(0, 0)).max() > 1e-2


@pytest.mark.parametrize("norm_place", ["pre", "post"])
@pytest.mark.parametrize("seed", [None, 3])
def test_encoder_layer(norm_place, seed):
    weights = {
        **named("norm1", norm()),
        **named("attention", self_attention()),
        **named("norm2", norm()),
        **named("ff", feed_forward("relu")),
    }
    layer = EncoderLayer(settings(norm=norm_place, dropout=0.3), weights)
    check(Bound(layer, np.zeros((B, S), int), Visible(MASK), rng_seed=seed), normal(RNG, B, S, D))


@pytest.mark.parametrize("norm_place", ["pre", "post"])
@pytest.mark.parametrize("seed", [None, 3])
def test_decoder_layer(norm_place, seed):
    weights = {
        **named("norm1", norm()),
        **named("attention", self_attention()),
        **named("norm2", norm()),
        **named("cross", {name: value for name, value in cross_attention().items() if not name.startswith("kv")}),
        **named("norm3", norm()),
        **named("ff", feed_forward("relu")),
    }
    layer = DecoderLayer(settings(config.TransformerDecoder, norm=norm_place, dropout=0.3), weights)
    empty = np.zeros((B, N, 0, D // N))

    class Whole:
        parameters = layer.parameters

        def forward(self, x, keys, values):
            generator = None if seed is None else np.random.default_rng(seed)
            visible = Visible(is_causal=True)
            past = KeysValues(empty, empty)
            memory = KeysValues(keys, values), MASK
            return layer.forward(x, np.zeros((B, T), int), visible, past, memory=memory, rng=generator)

        def backward(self, d_x, cache):
            d_x, d_memory, gradients = layer.backward(d_x, cache)
            return d_x, *d_memory, gradients

    check(Whole(), normal(RNG, B, T, D), normal(RNG, B, N, S, D // N), normal(RNG, B, N, S, D // N))


@pytest.mark.parametrize(
    ("positions", "norm_place", "has_features"),
    [("learned", "pre", True), ("sinusoidal", "post", False), ("rotary", "pre", True)],
)
def test_ends(positions, norm_place, has_features):
    weights = {"embedding.weight": normal(RNG, 5, D)}
    weights |= {"positions.weight": normal(RNG, 7, D)} if positions == "learned" else {}
    weights |= {"feature_type": normal(RNG, D)} if has_features else {}
    weights |= named("norm", norm()) if norm_place == "pre" else {}
    ends = Ends(settings(positions=positions, norm=norm_place, max_positions=7, dropout=0.3), weights)
    ids, at = np.array([[1, 4, 2, 1]]), np.array([[0, 6, 0, 1]])
    is_feature = np.array([[False, False, True, False]]) if has_features else None

    class Whole:
        parameters = weights

        def forward(self):
            x, entered = ends.enter(ids, at, is_feature, np.random.default_rng(1))
            y, left = ends.leave(x)
            return y, (entered, left)

        def backward(self, d_y, cache):
            d_x, found = ends.leave_backward(d_y, cache[1])
            return {**found, **ends.enter_backward(d_x, cache[0])}

    check(Whole())


def test_learned_positions_end_where_their_table_ends():
    weights = {"embedding.weight": normal(RNG, 5, D), "positions.weight": normal(RNG, 7, D)}
    ends = Ends(settings(positions="learned", norm="post", max_positions=7), weights)
    ends.enter(np.array([[1]]), np.array([[6]]), None, None)
    with pytest.raises(ShapeError, match=r"a sequence of 8 symbols, but positions=learned end at 7 \(max_positions\)"):
        ends.enter(np.array([[1]]), np.array([[7]]), None, None)
