"""Cells: textbook values, PyTorch's results with all gradients, finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from reference_cases import TOLERANCE, normal, random_cell

from unrolled import config
from unrolled.errors import ShapeError
from unrolled.reference import (
    GRUCell,
    LSTMCell,
    ReLURNNCell,
    ResetBeforeGRUCell,
    RNNCell,
    UngatedLSTMCell,
    gradient_check,
)
from unrolled.reference.cells import cell_type

ALL = [RNNCell, ReLURNNCell, LSTMCell, UngatedLSTMCell, GRUCell, ResetBeforeGRUCell]


@pytest.mark.parametrize("kind", ALL)
def test_gradients_of_a_step(kind):
    cell = random_cell(kind, 3, 5)
    inputs = cell.example_inputs(np.random.default_rng(1))
    assert len(inputs) == 1 + len(cell.state_type._fields)
    errors = gradient_check(cell, *inputs)
    assert errors.keys() == {*cell.parameters, *(f"input {n}" for n in range(len(inputs)))}
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("kind", ALL)
def test_a_new_cell_can_be_checked_as_it_is(kind):
    assert max(gradient_check(kind(3, 5)).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (RNNCell, lambda torch: torch.nn.RNNCell(3, 5)),
        (ReLURNNCell, lambda torch: torch.nn.RNNCell(3, 5, nonlinearity="relu")),
        (LSTMCell, lambda torch: torch.nn.LSTMCell(3, 5)),
        (GRUCell, lambda torch: torch.nn.GRUCell(3, 5)),
    ],
)
def test_outputs_and_all_gradients_are_those_of_pytorch(kind, theirs):
    torch = pytest.importorskip("torch")
    cell, module = random_cell(kind, 3, 5), theirs(torch).double()
    module.load_state_dict({name: torch.tensor(weight) for name, weight in cell.parameters.items()})
    rng = np.random.default_rng(1)
    arrays = cell.example_inputs(rng)
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]

    outputs, cache = cell.forward(*arrays)
    state = outputs if isinstance(outputs, tuple) else (outputs,)
    their_state = module(tensors[0], tuple(tensors[1:]) if len(tensors) > 2 else tensors[1])
    their_state = their_state if isinstance(their_state, tuple) else (their_state,)
    d_state = [normal(rng, 3, 5) for _ in state]
    *d_inputs, gradients = cell.backward(*d_state, cache)
    torch.autograd.backward(their_state, [torch.tensor(d) for d in d_state])

    for ours, reached in zip(state, their_state, strict=True):
        np.testing.assert_allclose(ours, reached.detach().numpy(), atol=1e-14)
    for ours, tensor in zip(d_inputs, tensors, strict=True):
        np.testing.assert_allclose(ours, tensor.grad.numpy(), atol=1e-13)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), atol=1e-13, err_msg=name)


@pytest.mark.parametrize(("kind", "expected"), [(GRUCell, 0.894939), (ResetBeforeGRUCell, 0.921696)])
def test_the_two_grus_are_different_functions(kind, expected):
    cell = kind.from_parameters(
        {
            "weight_ih": np.ones((3, 1)),
            "weight_hh": np.array([[1.0], [1.0], [-3.0]]),
            "bias_ih": np.zeros(3),
            "bias_hh": np.array([0.0, 0.0, 2.0]),
        }
    )
    h, _ = cell.forward(np.ones((1, 1)), np.ones((1, 1)))
    assert h.item() == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("biases", "gate", "kept"), [(None, 0.731059, 0.0019), ((1.0, 1.0), 0.880797, 0.0790), ((0.0, 0.0), 0.5, 9.5e-7)]
)
def test_what_the_forget_bias_keeps_of_a_cell_in_20_steps(biases, gate, kept):
    """A new cell has +1 in all; 1 in both vectors would be 2."""
    cell = LSTMCell(2, 3)
    cell.weight_ih[:] = 0.0
    cell.weight_hh[:] = 0.0
    if biases is not None:
        cell.bias_ih[3:6], cell.bias_hh[3:6] = biases
    h, c = np.zeros((1, 3)), np.ones((1, 3))
    for step in range(20):
        (h, c), _ = cell.forward(np.zeros((1, 2)), h, c)
        if step == 0:
            np.testing.assert_allclose(c, gate, atol=5e-7)
    np.testing.assert_allclose(c, kept, rtol=0.03)


def test_without_forget_gate_the_carousel_keeps_everything():
    cell = random_cell(UngatedLSTMCell, 2, 3)
    rng = np.random.default_rng(0)
    x, h, c = cell.example_inputs(rng)
    _, cache = cell.forward(x, h, c)
    d_c = normal(rng, 3, 3)
    np.testing.assert_array_equal(cell.backward(np.zeros((3, 3)), d_c, cache)[2], d_c)


def test_a_gru_has_three_quarters_of_an_lstm():
    def count(kind):
        return sum(weight.size for weight in kind(7, 11).parameters.values())

    assert count(GRUCell) * 4 == count(LSTMCell) * 3


def test_start_values_are_seeded_and_orthogonal():
    cell, same, other = LSTMCell(3, 5), LSTMCell(3, 5), LSTMCell(3, 5, seed=1, dtype=np.float32)
    np.testing.assert_array_equal(cell.weight_hh, same.weight_hh)
    assert not np.allclose(cell.weight_hh, other.weight_hh)
    assert other.weight_hh.dtype == np.float32
    np.testing.assert_allclose(cell.weight_hh[:5] @ cell.weight_hh[:5].T, np.eye(5), atol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_the_type_of_the_input_is_the_type_of_the_output(kind):
    cell = kind(3, 5, dtype=np.float32)
    inputs = [array.astype(np.float32) for array in cell.example_inputs(np.random.default_rng(0))]
    outputs, cache = cell.forward(*inputs)
    state = outputs if isinstance(outputs, tuple) else (outputs,)
    *d_inputs, gradients = cell.backward(*state, cache)
    assert {array.dtype for array in (*state, *d_inputs, *gradients.values())} == {np.dtype(np.float32)}


@pytest.mark.parametrize("kind", ALL)
def test_a_step_changes_none_of_its_arguments(kind):
    cell = random_cell(kind, 3, 5)
    inputs = cell.example_inputs(np.random.default_rng(0))
    before = [array.copy() for array in (*inputs, *cell.parameters.values())]
    _, cache = cell.forward(*inputs)
    d_state = [np.ones((3, 5)) for _ in cell.state_type._fields]
    cell.backward(*d_state, cache)
    for array, kept in zip((*inputs, *cell.parameters.values()), before, strict=True):
        np.testing.assert_array_equal(array, kept)
    for array in d_state:
        np.testing.assert_array_equal(array, 1.0)


def test_weights_of_another_cell_are_refused():
    with pytest.raises(ShapeError, match=r"weight_hh of LSTMCell must have shape \(20, 5\), got \(15, 5\)"):
        LSTMCell.from_parameters(GRUCell(3, 5).parameters)


@pytest.mark.parametrize("kind", ALL)
def test_misshapen_arguments_are_named(kind):
    cell = kind(3, 5)
    x, *state = cell.example_inputs(np.random.default_rng(0))
    wrong = rf"the last axis of x must be the input_size 3 of {kind.__name__}, got shape \(3, 2\)"
    with pytest.raises(ShapeError, match=wrong):
        cell.forward(x[:, :2], *state)
    with pytest.raises(ShapeError, match=rf"h of {kind.__name__} must have shape \(3, 5\), got \(2, 5\)"):
        cell.forward(x, state[0][:2], *state[1:])


def test_settings_choose_the_cell():
    chosen = {
        cell_type(config.RecurrentEncoder(cell="lstm")): LSTMCell,
        cell_type(config.RecurrentEncoder(cell="lstm", forget_gate=False)): UngatedLSTMCell,
        cell_type(config.RecurrentEncoder(cell="gru")): GRUCell,
        cell_type(config.RecurrentEncoder(cell="gru", reset="before")): ResetBeforeGRUCell,
        cell_type(config.RecurrentEncoder(cell="rnn")): RNNCell,
        cell_type(config.RecurrentEncoder(cell="rnn", nonlinearity="relu")): ReLURNNCell,
    }
    assert all(found is expected for found, expected in chosen.items())
    assert len(chosen) == 6
