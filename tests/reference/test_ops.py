"""Operations: exact values, extreme inputs, finite differences, and PyTorch's own results."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from reference_cases import TOLERANCE, FunctionLayer, normal

from unrolled.reference import gradient_check, ops
from unrolled.reference.erf import erf


def check(layer, *inputs):
    errors = gradient_check(layer, *inputs)
    assert max(errors.values()) < TOLERANCE, errors


# --- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sigmoid_of_any_finite_input_neither_overflows_nor_warns(dtype):
    top = np.finfo(dtype).max
    x = np.array([-top, -1e4, -50.0, 0.0, 50.0, 1e4, top], dtype)
    y = ops.sigmoid(x)
    assert y.dtype == dtype
    assert y[3] == 0.5
    np.testing.assert_array_equal(y[[0, 1, 5, 6]], [0.0, 0.0, 1.0, 1.0])
    assert np.all(np.diff(y.astype(float)) >= 0)


def test_sigmoid_values():
    np.testing.assert_allclose(ops.sigmoid(np.array([1.0, 2.0, -1.0])), [0.731059, 0.880797, 0.268941], atol=5e-7)


def test_sigmoid_can_write_over_its_input():
    x = np.array([0.3, -2.0])
    expected = ops.sigmoid(x)
    assert ops.sigmoid(x, out=x) is x
    np.testing.assert_array_equal(x, expected)


def test_erf_agrees_with_the_standard_library():
    x = np.linspace(-9.0, 9.0, 4001)
    assert np.abs(erf(x) - [math.erf(value) for value in x]).max() < 1e-13
    assert erf(x.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu", "silu"])
def test_activations(name):
    torch = pytest.importorskip("torch")
    x = normal(np.random.default_rng(0), 3, 7)
    forward, backward = getattr(ops, f"{name}_forward"), getattr(ops, f"{name}_backward")
    theirs = torch.tanh if name == "tanh" else getattr(torch.nn.functional, name)
    np.testing.assert_allclose(forward(x)[0], theirs(torch.tensor(x)).numpy(), rtol=0, atol=1e-13)
    check(FunctionLayer(forward, backward), x)


# --- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean_and_drops_the_asked_share():
    x = np.ones((200, 500), np.float32)
    y, mask = ops.dropout_forward(x, 0.3, np.random.default_rng(0))
    assert y.dtype == np.float32
    assert abs((y == 0).mean() - 0.3) < 0.01
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(0.7)}
    np.testing.assert_array_equal(ops.dropout_backward(x, mask), y)


def test_dropout_without_a_generator_or_a_rate_does_nothing():
    x = np.ones(5)
    for rate, rng in ((0.5, None), (0.0, np.random.default_rng(0))):
        y, mask = ops.dropout_forward(x, rate, rng)
        assert y is x
        assert ops.dropout_backward(x, mask) is x


# --- products --------------------------------------------------------------------------------------------------------


def test_linear():
    rng = np.random.default_rng(0)
    parameters = {"weight": normal(rng, 5, 7), "bias": normal(rng, 5)}
    x = normal(rng, 2, 3, 7)
    y, _ = ops.linear_forward(x, **parameters)
    np.testing.assert_allclose(y, x @ parameters["weight"].T + parameters["bias"])
    check(FunctionLayer(ops.linear_forward, ops.linear_backward, parameters), x)


@pytest.mark.parametrize("num_rows", [1, 7, 99, 100, 130])
def test_a_product_of_few_rows_is_a_product(num_rows):
    rng = np.random.default_rng(0)
    x, weight = normal(rng, num_rows, 5), normal(rng, 11, 5)
    np.testing.assert_allclose(ops.few_rows_product(x, weight), x @ weight.T, rtol=0, atol=1e-14)


def test_embedding_sums_the_gradients_of_equal_ids():
    ids = np.array([[2, 0, 2], [4, 2, 4]])
    weight = normal(np.random.default_rng(0), 5, 3)
    layer = FunctionLayer(ops.embedding_forward, ops.embedding_backward, {"weight": weight})
    check(layer, ids)
    _, cache = ops.embedding_forward(ids, weight)
    counts = ops.embedding_backward(np.ones((2, 3, 3)), cache)
    np.testing.assert_array_equal(counts[:, 0], [1, 0, 3, 0, 2])
    empty = ops.embedding_forward(ids[:0], weight)[1]
    np.testing.assert_array_equal(ops.embedding_backward(np.ones((0, 3, 3)), empty), np.zeros((5, 3)))


def test_layer_norm():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    parameters = {"weight": normal(rng, 7), "bias": normal(rng, 7)}
    x = 3.0 + 2.0 * normal(rng, 2, 3, 7)
    y, _ = ops.layer_norm_forward(x, **parameters)
    arguments = [torch.tensor(value) for value in parameters.values()]
    np.testing.assert_allclose(y, torch.nn.functional.layer_norm(torch.tensor(x), (7,), *arguments).numpy(), atol=1e-13)
    check(FunctionLayer(ops.layer_norm_forward, ops.layer_norm_backward, parameters), x)


def test_layer_norm_of_a_constant_row_is_its_bias():
    y, _ = ops.layer_norm_forward(np.full((1, 4), 7.0), np.ones(4), np.arange(4.0))
    np.testing.assert_array_equal(y, [[0.0, 1.0, 2.0, 3.0]])


# --- softmax ---------------------------------------------------------------------------------------------------------


def test_masked_softmax_runs_over_the_last_axis():
    weights, _ = ops.masked_softmax_forward(np.array([[1.0, 2.0, 3.0]] * 2), np.ones(3, bool))
    np.testing.assert_allclose(weights, [[0.090031, 0.244728, 0.665241]] * 2, atol=5e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 5e-7), (np.float32, 1e-6), (np.float16, 1e-3)])
def test_masked_softmax_spends_nothing_on_padding(dtype, tolerance):
    output = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], dtype)
    scores = np.array([[2.0, 0.0]], dtype) @ output.T
    weights, _ = ops.masked_softmax_forward(scores, np.array([True, True, False, False]))
    assert weights.dtype == dtype
    np.testing.assert_allclose(weights, [[0.880797, 0.119203, 0.0, 0.0]], atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_row_that_may_see_nothing_weighs_nothing(dtype):
    scores = np.array([[1.0, np.nan, np.inf], [3.0, -2.0, 5.0]], dtype)
    allowed = np.array([[False, False, False], [True, True, False]])
    weights, cache = ops.masked_softmax_forward(scores, allowed)
    np.testing.assert_array_equal(weights[0], 0.0)
    assert weights[1].sum() == pytest.approx(1.0, abs=1e-3)
    assert weights[1, 2] == 0.0
    d_scores = ops.masked_softmax_backward(np.array([[1.0, 2.0, 3.0]] * 2, dtype), cache)
    assert d_scores.dtype == dtype
    assert np.isfinite(d_scores).all()
    np.testing.assert_array_equal(d_scores[0], 0.0)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_masked_softmax_does_not_depend_on_a_shift_of_the_scores(shift):
    scores = np.array([[1.0, 2.0, 3.0]])
    weights, _ = ops.masked_softmax_forward(scores + shift, np.array([True, True, False]))
    np.testing.assert_allclose(weights, [[0.268941, 0.731059, 0.0]], atol=5e-7)


def test_masked_softmax_gradient():
    rng = np.random.default_rng(0)
    allowed = rng.random((2, 3, 5)) < 0.6
    layer = FunctionLayer(lambda x: ops.masked_softmax_forward(x, allowed), ops.masked_softmax_backward)
    check(layer, normal(rng, 2, 3, 5))


@given(hnp.arrays(np.float32, (2, 5), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_log_softmax_is_finite_and_normalised(logits):
    log_probs = ops.log_softmax(logits)
    assert log_probs.dtype == np.float32
    assert not np.isnan(log_probs).any()
    np.testing.assert_allclose(np.exp(log_probs.astype(float)).sum(axis=1), 1.0, atol=1e-5)


# --- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("smoothing", "expected"), [(0.0, 0.440190), (0.2, 0.740190)])
def test_smoothing_spreads_over_all_classes_and_padding_pays_nothing(smoothing, expected):
    logits = np.array([[2.0, 1.0, 0.0, -1.0], [0.0, 0.0, 0.0, 5.0]])
    loss, cache = ops.cross_entropy_forward(logits, np.array([0, 0]), np.array([True, False]), smoothing=smoothing)
    assert loss == pytest.approx(expected, abs=5e-7)
    np.testing.assert_array_equal(ops.cross_entropy_backward(1.0, cache)[1], 0.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.13])
def test_cross_entropy(smoothing):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    logits, labels = normal(rng, 2, 3, 7), rng.integers(0, 7, (2, 3))
    is_label = np.array([[True, True, False], [True, False, False]])
    layer = FunctionLayer(
        lambda x: ops.cross_entropy_forward(x, labels, is_label, smoothing=smoothing), ops.cross_entropy_backward
    )
    check(layer, logits)
    ignored = torch.tensor(np.where(is_label, labels, -100)).flatten()
    theirs = torch.nn.functional.cross_entropy(
        torch.tensor(logits).flatten(0, 1), ignored, reduction="sum", label_smoothing=smoothing
    )
    assert layer.forward(logits)[0] == pytest.approx(theirs.item(), abs=1e-12)


def test_a_batch_without_labels_costs_nothing():
    loss, cache = ops.cross_entropy_forward(np.ones((1, 2, 3)), np.zeros((1, 2), int), np.zeros((1, 2), bool))
    assert loss == 0.0
    np.testing.assert_array_equal(ops.cross_entropy_backward(1.0, cache), 0.0)
