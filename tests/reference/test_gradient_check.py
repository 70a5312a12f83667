"""The checker itself: it must find what is wrong, and accept what is right."""

from __future__ import annotations

import numpy as np
import pytest
from reference_cases import FunctionLayer, normal, random_cell

from unrolled.errors import ShapeError
from unrolled.reference import GRUCell, LSTMCell, gradient_check


class Scaled:
    """``y = w ⊙ x``: a user's own layer."""

    def __init__(self, dtype=np.float64):
        self.parameters = {"w": np.array([1.0, -2.0, 3.0], dtype)}

    def forward(self, x):
        return self.parameters["w"] * x, x

    def backward(self, d_y, x):
        return d_y * self.parameters["w"], {"w": (d_y * x).sum(axis=0)}


X = normal(np.random.default_rng(0), 2, 3)


def test_a_right_layer_passes():
    errors = gradient_check(Scaled(), X)
    assert errors.keys() == {"w", "input 0"}
    assert max(errors.values()) < 1e-9


@pytest.mark.parametrize(("factor", "error"), [(2.0, 1 / 3), (-1.0, 1.0), (1.01, 0.005)])
def test_a_wrong_gradient_is_found_and_measured(factor, error):
    class Wrong(Scaled):
        def backward(self, d_y, x):
            d_x, gradients = super().backward(d_y, x)
            return d_x, {"w": factor * gradients["w"]}

    errors = gradient_check(Wrong(), X)
    assert errors["w"] == pytest.approx(error, rel=0.02)
    assert errors["input 0"] < 1e-9


def test_a_wrong_input_gradient_is_found():
    class Wrong(Scaled):
        def backward(self, d_y, x):
            d_x, gradients = super().backward(d_y, x)
            return d_x[:, ::-1], gradients

    errors = gradient_check(Wrong(), X)
    assert errors["input 0"] > 0.1
    assert errors["w"] < 1e-9


def test_a_start_state_whose_gradient_is_cut_is_found():
    class Cut(GRUCell):
        def backward(self, d_h, cache):
            d_x, d_start, gradients = super().backward(d_h, cache)
            return d_x, np.zeros_like(d_start), gradients

    cell = random_cell(Cut, 3, 5)
    errors = gradient_check(cell)
    assert errors["input 1"] == 1.0
    assert errors["weight_hh"] < 1e-6


def test_a_bias_added_twice_is_found():
    class Twice(LSTMCell):
        def input_part(self, x):
            return super().input_part(x) + self.bias_hh

    assert gradient_check(random_cell(Twice, 3, 5))["bias_hh"] > 0.1


def test_zero_gradients_are_no_error():
    layer = FunctionLayer(lambda x, unused: (x, None), lambda d_y, _: (d_y, np.zeros(2)), {"unused": np.ones(2)})
    assert gradient_check(layer, X)["unused"] == 0.0


def test_tiny_gradients_are_measured_against_the_largest():
    rng = np.random.default_rng(0)
    layer = FunctionLayer(
        lambda x, w: (x + 0.0 * w, None), lambda d_y, _: (d_y, 1e-12 * normal(rng, 3)), {"w": X[0].copy()}
    )
    assert gradient_check(layer, X)["w"] < 1e-5


def test_everything_is_restored():
    layer, x = Scaled(), X.copy()
    gradient_check(layer, x)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(layer.parameters["w"], [1.0, -2.0, 3.0])


def test_single_precision_is_refused():
    with pytest.raises(ShapeError, match="w must be float64 for a gradient check, got float32"):
        gradient_check(Scaled(np.float32), X)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((X, {}), "backward returned no gradient of w, expected one of shape \\(3,\\)"),
        ((X, {"w": np.ones(2)}), "gradient of w must have shape \\(3,\\), got \\(2,\\)"),
        ((X[:1], {"w": np.ones(3)}), "gradient of input 0 must have shape \\(2, 3\\), got \\(1, 3\\)"),
        ((X, {"w": np.ones(3), "v": np.ones(3)}), "backward returned a gradient of v, which is no parameter"),
        ((X, X, {"w": np.ones(3)}), "backward returned gradients of 2 inputs, expected 1"),
    ],
)
def test_missing_and_misshapen_gradients_are_named(returned, message):
    layer = Scaled()
    layer.backward = lambda d_y, x: returned
    with pytest.raises(ShapeError, match=message):
        gradient_check(layer, X)
