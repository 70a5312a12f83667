"""Scaled dot-product attention, plain and tiled; positions; scores of recurrent decoders."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_cases import TOLERANCE, FunctionLayer, normal

from unrolled.reference import gradient_check
from unrolled.reference.attention import (
    Visible,
    attention_backward,
    attention_forward,
    attention_weights,
    tiled_attention_backward,
    tiled_attention_forward,
)
from unrolled.reference.positions import rotate_backward, rotate_forward, sinusoids
from unrolled.reference.scores import SCORES, attend_backward, attend_forward

B, N, n, S, K, V = 2, 3, 5, 7, 4, 2  # values have another size than keys


def heads(rng, queries=n, keys=S, dtype=np.float64):
    shapes = (queries, K), (keys, K), (keys, V)
    return [normal(rng, B, N, *shape, dtype=dtype) for shape in shapes]


# --- exact values ----------------------------------------------------------------------------------------------------


def test_causal_attention_of_equal_scores_averages_what_came_before():
    zeros, values = np.zeros((1, 1, 3, 4)), np.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
    visible = Visible(is_causal=True)
    for context in (
        attention_forward(zeros, zeros, values, visible.whole(3, 3))[0],
        tiled_attention_forward(zeros, zeros, values, visible, block=2)[0],
    ):
        np.testing.assert_allclose(context.ravel(), [1.0, 5.5, 37.0])


def test_the_scale_is_that_of_a_head():
    query, keys = np.full((1, 1, 1, 16), 1.0), np.zeros((1, 1, 2, 16))
    keys[..., 0, :] = 1.0
    weights = attention_weights(query, keys, np.ones(2, bool))
    np.testing.assert_allclose(weights.ravel(), [0.982014, 0.017986], atol=5e-7)


def test_causal_masks_align_at_the_bottom_right():
    np.testing.assert_array_equal(Visible(is_causal=True).whole(2, 4), [[1, 1, 1, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_window_of_w_is_a_position_and_its_neighbours(is_causal):
    allowed = Visible(is_causal=is_causal, window=2).whole(3, 4)
    both_sides = np.array([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]], bool)
    np.testing.assert_array_equal(allowed, np.tril(both_sides, 1) if is_causal else both_sides)


# --- plain -----------------------------------------------------------------------------------------------------------


def masks(rng):
    keys = rng.random((B, S)) < 0.7
    keys[0] = False  # a row that may see nothing
    return keys


@pytest.mark.parametrize("visible", [Visible(), Visible(is_causal=True), Visible(masks(np.random.default_rng(0)))])
def test_gradients(visible):
    layer = FunctionLayer(lambda *x: attention_forward(*x, visible.whole(n, S)), attention_backward)
    errors = gradient_check(layer, *heads(np.random.default_rng(1)))
    assert max(errors.values()) < TOLERANCE, errors


def test_outputs_and_gradients_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays, allowed = heads(rng), np.tril(rng.random((B, N, n, S)) < 0.8) | np.eye(n, S, dtype=bool)
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=torch.tensor(allowed))
    context, cache = attention_forward(*arrays, allowed)
    d_context = normal(rng, *context.shape)
    theirs.backward(torch.tensor(d_context))
    np.testing.assert_allclose(context, theirs.detach().numpy(), atol=1e-14)
    for gradient, tensor in zip(attention_backward(d_context, cache), tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-13)


# --- tiled -----------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 30),
    num_queries=st.integers(1, 9),
    past=st.integers(0, 5),
    block=st.integers(1, 10),
    is_causal=st.booleans(),
    window=st.none() | st.integers(1, 6),
    has_padding=st.booleans(),
)
def test_tiled_is_plain(seed, num_queries, past, block, is_causal, window, has_padding):
    rng = np.random.default_rng(seed)
    num_keys = num_queries + past
    arrays = heads(rng, num_queries, num_keys)
    visible = Visible(rng.random((B, num_keys)) < 0.6 if has_padding else None, is_causal, window)
    expected, plain = attention_forward(*arrays, visible.whole(num_queries, num_keys))
    context, tiled = tiled_attention_forward(*arrays, visible, block=block)
    np.testing.assert_allclose(context, expected, atol=1e-13)
    d_context = normal(rng, *context.shape)
    pairs = zip(tiled_attention_backward(d_context, tiled), attention_backward(d_context, plain), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_tiles_of_scores_in_the_thousands_neither_overflow_nor_lose_weight():
    rng = np.random.default_rng(0)
    query, keys, values = heads(rng)
    query *= 3e3
    expected, plain = attention_forward(query, keys, values, Visible().whole(n, S))
    context, tiled = tiled_attention_forward(query, keys, values, Visible(), block=2)
    np.testing.assert_allclose(context, expected, atol=1e-12)
    pairs = zip(tiled_attention_backward(context, tiled), attention_backward(context, plain), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_queries_that_see_nothing_stay_finite_in_every_precision(dtype):
    rng = np.random.default_rng(0)
    arrays = heads(rng, dtype=dtype)
    visible = Visible(np.array([[False] * S, [True] * 3 + [False] * (S - 3)]))
    context, cache = tiled_attention_forward(*arrays, visible, block=3)
    gradients = tiled_attention_backward(np.ones_like(context), cache)
    for array in (context, *gradients):
        assert array.dtype == dtype
        assert np.isfinite(array).all()
        np.testing.assert_array_equal(array[0], 0.0)
    assert np.abs(context[1]).min() > 0.0
    np.testing.assert_array_equal(gradients.d_keys[1, :, 3:], 0.0)


def test_half_precision_agrees_with_single():
    arrays = heads(np.random.default_rng(0), dtype=np.float16)
    half, _ = tiled_attention_forward(*arrays, Visible(is_causal=True), block=2)
    single, _ = tiled_attention_forward(*(a.astype(np.float32) for a in arrays), Visible(is_causal=True), block=2)
    np.testing.assert_allclose(half, single, atol=4e-3)


def peak_memory(length, **visible):
    rng = np.random.default_rng(0)
    arrays = [normal(rng, 1, 1, length, 8, dtype=np.float32) for _ in range(3)]
    tracemalloc.start()
    context, cache = tiled_attention_forward(*arrays, Visible(**visible), block=64)
    tiled_attention_backward(context, cache)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_grows_with_the_length_and_not_with_its_square():
    short, long = peak_memory(512), peak_memory(2048)
    assert long < 5 * short
    assert long < 2048 * 2048  # bytes: a quarter of the float32 weights


def test_tiles_outside_of_the_window_are_not_computed(monkeypatch):
    spans = []
    whole = Visible.tile

    def recorded(self, rows, columns, *sizes):
        spans.append((rows.start, columns.start))
        return whole(self, rows, columns, *sizes)

    monkeypatch.setattr(Visible, "tile", recorded)
    arrays = [np.ones((1, 1, 64, 2)) for _ in range(3)]
    tiled_attention_forward(*arrays, Visible(is_causal=True, window=8), block=8)
    assert len(spans) == 8 + 2 * 7 - 7  # each block of queries meets its own keys and those of the block before
    spans.clear()
    tiled_attention_forward(*arrays, Visible(is_causal=True), block=8)
    assert len(spans) == 8 * 9 // 2


# --- positions -------------------------------------------------------------------------------------------------------


def test_sinusoids_of_an_odd_width():
    expected = [
        [0, 1, 0, 1, 0],
        [0.841471, 0.540302, 0.025116, 0.999685, 0.000631],
        [0.909297, -0.416147, 0.050217, 0.998738, 0.001262],
    ]
    np.testing.assert_allclose(sinusoids(np.arange(3), 5), expected, atol=1e-6)


def test_rotation_makes_products_depend_on_the_distance_alone():
    rng = np.random.default_rng(0)
    query, key = normal(rng, 1, 1, 1, 6), normal(rng, 1, 1, 1, 6)

    def product(i, j):
        rotated = (rotate_forward(x, np.array([[at]]))[0] for x, at in ((query, i), (key, j)))
        return float(np.vdot(*rotated))

    assert product(9, 4) == pytest.approx(product(5, 0), abs=1e-12)
    assert product(9, 4) != pytest.approx(product(4, 9), abs=1e-3)
    assert product(0, 0) == pytest.approx(float(np.vdot(query, key)), abs=1e-14)


def test_rotation_by_hand():
    x = np.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 1, 4)
    rotated, _ = rotate_forward(x, np.array([[2]]))
    angles = 2.0, 2.0 / 100.0
    np.testing.assert_allclose(
        rotated.ravel(), [np.cos(angles[0]), np.sin(angles[0]), -np.sin(angles[1]), np.cos(angles[1])]
    )


def test_rotation_gradient():
    positions = np.array([[0, 1, 5], [2, 2, 7]])
    layer = FunctionLayer(lambda x: rotate_forward(x, positions), rotate_backward)
    assert max(gradient_check(layer, normal(np.random.default_rng(0), 2, 3, 3, 4)).values()) < TOLERANCE


# --- scores of recurrent decoders ------------------------------------------------------------------------------------

H = 5
SCORE_WEIGHTS = {
    "dot": {},
    "scaled_dot": {},
    "general": {"key.weight": (H, 3)},
    "additive": {"query.weight": (H, H), "key.weight": (H, 3), "v": (H,)},
}


class Attend:
    """Keys, weights and context of one score as a layer."""

    def __init__(self, name):
        rng = np.random.default_rng(0)
        self.parameters = {key: normal(rng, *shape) for key, shape in SCORE_WEIGHTS[name].items()}
        self.score = SCORES[name](self.parameters)
        self.mask = np.array([[True] * 4, [True, True, False, False], [False] * 4])

    def forward(self, query, output):
        keys, kept = self.score.keys(output)
        (context, self.weights), cache = attend_forward(self.score, query, output, keys, self.mask)
        return context, (kept, cache)

    def backward(self, d_context, cache):
        d_query, d_output, d_keys, compared = attend_backward(self.score, d_context, cache[1])
        d_from_keys, keyed = self.score.keys_backward(d_keys, cache[0])
        return d_query, d_output + d_from_keys, {**compared, **keyed}


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    rng = np.random.default_rng(1)
    layer = Attend(name)
    query, output = normal(rng, 6, 2, H), normal(rng, 3, 4, H if name.endswith("dot") else 3)  # two rows a source
    errors = gradient_check(layer, query, output)
    assert max(errors.values()) < TOLERANCE, errors
    context, _ = layer.forward(query, output)
    np.testing.assert_allclose(layer.weights.sum(axis=2), [[1, 1]] * 4 + [[0, 0]] * 2, atol=1e-12)
    np.testing.assert_array_equal(layer.weights[2:4, :, 2:], 0.0)
    np.testing.assert_allclose(context[1], layer.weights[1] @ output[0])  # rows are source-major


def test_scores_by_hand():
    s, m = np.array([[[1.0, 2.0]]]), np.array([[[3.0, -1.0]]])
    w, u, v = np.array([[0.5, 0.0], [0.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([2.0, -1.0])

    def score(name, **weights):
        made = SCORES[name](weights)
        return made.compare(s, made.keys(m)[0])[0].item()

    assert score("dot") == pytest.approx(1.0)
    assert score("scaled_dot") == pytest.approx(1.0 / np.sqrt(2.0))
    assert score("general", **{"key.weight": u}) == pytest.approx(s[0, 0] @ u @ m[0, 0])
    additive = score("additive", **{"query.weight": w, "key.weight": u, "v": v})
    assert additive == pytest.approx(v @ np.tanh(w @ s[0, 0] + u @ m[0, 0]))
