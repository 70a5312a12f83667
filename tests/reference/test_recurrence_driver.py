"""The driver of time: ragged rows, directions, layers, start states, truncation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_cases import TOLERANCE, normal, random_cell

from unrolled.reference import (
    GRUCell,
    LSTMCell,
    Recurrent,
    ReLURNNCell,
    ResetBeforeGRUCell,
    RNNCell,
    UngatedLSTMCell,
    gradient_check,
    unroll_backward,
    unroll_forward,
)

ALL = [RNNCell, ReLURNNCell, LSTMCell, UngatedLSTMCell, GRUCell, ResetBeforeGRUCell]
B, T, X, H = 3, 4, 2, 5
MASK = np.arange(T) < np.array([4, 2, 0])[:, None]


def stack(kind, num_layers=2, num_directions=2, **options):
    sizes = [X, *[num_directions * H] * (num_layers - 1)]
    cells = [
        tuple(random_cell(kind, size, H, seed=10 * layer + way) for way in range(num_directions))
        for layer, size in enumerate(sizes)
    ]
    return Recurrent(cells, **options)


def start_of(kind, rng, num_layers=2, width=2 * H):
    return tuple(kind.state_type(*(normal(rng, B, width) for _ in kind.state_type._fields)) for _ in range(num_layers))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_gradients_with_ragged_rows_and_start_states(kind, is_reversed):
    rng = np.random.default_rng(0)
    layers = stack(kind, num_layers=2 if kind is LSTMCell else 1, is_reversed=is_reversed)
    start = start_of(kind, rng, len(layers.layers))
    errors = gradient_check(layers, normal(rng, B, T, X), start, MASK)
    assert max(errors.values()) < TOLERANCE, errors
    assert len(errors) == len(layers.parameters) + 1 + len(layers.layers) * len(kind.state_type._fields)


def test_gradients_of_a_single_step():
    rng = np.random.default_rng(0)
    layers = stack(GRUCell, num_layers=1)
    assert max(gradient_check(layers, normal(rng, B, 1, X), start_of(GRUCell, rng, 1)).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        (RNNCell, "RNN", {}),
        (ReLURNNCell, "RNN", {"nonlinearity": "relu"}),
        (LSTMCell, "LSTM", {}),
        (GRUCell, "GRU", {}),
    ],
)
def test_outputs_states_and_all_gradients_are_those_of_pytorch(kind, name, options):
    torch = pytest.importorskip("torch")
    layers, rng = stack(kind), np.random.default_rng(1)
    module = getattr(torch.nn, name)(X, H, num_layers=2, bidirectional=True, batch_first=True, **options).double()
    theirs = {
        f"{weight}_l{layer}{'_reverse' if way == 'bwd' else ''}": torch.tensor(value)
        for path, value in layers.parameters.items()
        for layer, way, weight in [path.split(".")]
    }
    module.load_state_dict(theirs)
    x, start = normal(rng, B, T, X), start_of(kind, rng)
    tensor = torch.tensor(x, requires_grad=True)
    their_start = [
        torch.tensor(
            np.stack([half for state in start for half in np.split(state[part], 2, axis=1)]), requires_grad=True
        )
        for part in range(len(start[0]))
    ]
    their_output, their_last = module(tensor, tuple(their_start) if len(their_start) > 1 else their_start[0])
    their_last = their_last if isinstance(their_last, tuple) else (their_last,)

    (output, last), cache = layers.forward(x, start)
    d_output, d_last = normal(rng, *output.shape), start_of(kind, rng)
    d_x, d_start, gradients = layers.backward(d_output, d_last, cache)

    def as_theirs(states, part):
        return np.stack([half for state in states for half in np.split(state[part], 2, axis=1)])

    torch.autograd.backward(
        (their_output, *their_last),
        (torch.tensor(d_output), *(torch.tensor(as_theirs(d_last, part)) for part in range(len(their_last)))),
    )
    np.testing.assert_allclose(output, their_output.detach().numpy(), atol=1e-13)
    np.testing.assert_allclose(d_x, tensor.grad.numpy(), atol=1e-12)
    for part, (theirs_last, theirs_start) in enumerate(zip(their_last, their_start, strict=True)):
        np.testing.assert_allclose(as_theirs(last, part), theirs_last.detach().numpy(), atol=1e-13)
        np.testing.assert_allclose(as_theirs(d_start, part), theirs_start.grad.numpy(), atol=1e-12)
    for path, gradient in gradients.items():
        layer, way, weight = path.split(".")
        expected = getattr(module, f"{weight}_l{layer}{'_reverse' if way == 'bwd' else ''}").grad
        np.testing.assert_allclose(gradient, expected.numpy(), atol=1e-12, err_msg=path)


@given(seed=st.integers(0, 50), lengths=st.lists(st.integers(0, T), min_size=B, max_size=B))
def test_a_ragged_row_is_what_it_is_alone(seed, lengths):
    rng = np.random.default_rng(seed)
    layers = stack(GRUCell)
    x, start = normal(rng, B, T, X), start_of(GRUCell, rng)
    mask = np.arange(T) < np.array(lengths)[:, None]
    (output, last), _ = layers.forward(np.where(mask[..., None], x, 1e3), start, mask)
    for row, length in enumerate(lengths):
        alone = tuple(type(state)(*(part[row : row + 1] for part in state)) for state in start)
        (expected, expected_last), _ = layers.forward(x[row : row + 1, :length], alone)
        np.testing.assert_allclose(output[row : row + 1, :length], expected, atol=1e-13)
        for ours, theirs in zip(last, expected_last, strict=True):
            np.testing.assert_allclose(ours.h[row : row + 1], theirs.h, atol=1e-13)


def test_padding_gets_no_gradient():
    layers, rng = stack(LSTMCell), np.random.default_rng(0)
    (output, _), cache = layers.forward(normal(rng, B, T, X), None, MASK)
    d_x, _, _ = layers.backward(np.where(MASK[..., None], normal(rng, *output.shape), 0.0), None, cache)
    np.testing.assert_array_equal(d_x[~MASK], 0.0)
    assert np.all(d_x[MASK] != 0.0)


def test_the_backward_direction_reads_the_whole_source():
    layers, rng = stack(LSTMCell, num_layers=1), np.random.default_rng(0)
    x = normal(rng, 1, 3, X)
    (_, (before,)), _ = layers.forward(x)
    x[0, 0] += 1.0
    (_, (after,)), _ = layers.forward(x)
    assert np.abs(after.h - before.h)[0, H:].min() > 1e-4


def test_whole_is_chunks_is_steps():
    layers, rng = stack(GRUCell, num_directions=1), np.random.default_rng(0)
    x, start = normal(rng, B, T, X), start_of(GRUCell, rng, width=H)
    (whole, last), _ = layers.forward(x, start)
    for cut in (1, 2, 3):
        state, outputs = start, []
        for begin in range(0, T, cut):
            (output, state), _ = layers.forward(x[:, begin : begin + cut], state)
            outputs.append(output)
        np.testing.assert_allclose(np.concatenate(outputs, axis=1), whole, atol=1e-14)
        np.testing.assert_allclose(state[-1].h, last[-1].h, atol=1e-14)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_truncation_is_running_the_chunks_from_detached_states(kind, cut):
    cell, rng = random_cell(kind, X, H), np.random.default_rng(0)
    x, d_h = normal(rng, B, T, X), normal(rng, B, T, H)
    start = kind.state_type(*(normal(rng, B, H) for _ in kind.state_type._fields))
    _, _, cache = unroll_forward(cell, x, start)
    d_x, d_start, gradients = unroll_backward(cell, d_h, None, cache, truncate=cut)
    state, total, parts, first = start, {}, [], None
    for begin in range(0, T, cut):
        _, state, cache = unroll_forward(cell, x[:, begin : begin + cut], state)
        d_part, d_begin, found = unroll_backward(cell, d_h[:, begin : begin + cut], None, cache)
        first = d_begin if first is None else first
        parts.append(d_part)
        total = {name: total.get(name, 0.0) + gradient for name, gradient in found.items()}
    np.testing.assert_allclose(d_x, np.concatenate(parts, axis=1), atol=1e-13)
    for ours, theirs in zip(d_start, first, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-13)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, total[name], atol=1e-12, err_msg=name)


def test_the_last_state_takes_gradients_too():
    cell, rng = random_cell(LSTMCell, X, H), np.random.default_rng(0)
    x, start = normal(rng, B, T, X), cell.zero_state(B)
    h, last, cache = unroll_forward(cell, x, start)
    d_h = np.zeros_like(h)
    d_h[:, -1] = 1.0
    by_output = unroll_backward(cell, d_h, None, cache)
    by_state = unroll_backward(
        cell, np.zeros_like(h), last._replace(h=np.ones_like(last.h), c=np.zeros_like(last.c)), cache
    )
    np.testing.assert_allclose(by_output[0], by_state[0], atol=1e-15)


class WithDropout:
    """Layers whose dropout draws the same masks at each call."""

    def __init__(self, layers):
        self.layers, self.parameters = layers, layers.parameters

    def forward(self, x):
        (output, _), cache = self.layers.forward(x, None, None, np.random.default_rng(5))
        return output, cache

    def backward(self, d_output, cache):
        d_x, _, gradients = self.layers.backward(d_output, None, cache)
        return d_x, gradients


def test_dropout_between_layers():
    x = normal(np.random.default_rng(0), B, T, X)
    layers = stack(GRUCell, dropout=0.4)
    assert max(gradient_check(WithDropout(layers), x).values()) < TOLERANCE
    calm = layers.forward(x)[0][0]
    assert not np.allclose(calm, WithDropout(layers).forward(x)[0])
    single = stack(GRUCell, num_layers=1, dropout=0.4)
    np.testing.assert_array_equal(single.forward(x)[0][0], WithDropout(single).forward(x)[0])


@pytest.mark.parametrize("num_directions", [1, 2])
def test_layers_are_found_by_their_names(num_directions):
    layers = stack(GRUCell, num_directions=num_directions)
    again = Recurrent.from_parameters(GRUCell, layers.parameters)
    assert [len(cells) for cells in again.layers] == [num_directions] * 2
    x = normal(np.random.default_rng(0), B, T, X)
    np.testing.assert_array_equal(again.forward(x)[0][0], layers.forward(x)[0][0])


def test_float32_stays_float32():
    cells = [(LSTMCell(X, H, dtype=np.float32), LSTMCell(X, H, dtype=np.float32))]
    layers = Recurrent(cells)
    (output, last), cache = layers.forward(normal(np.random.default_rng(0), B, T, X, dtype=np.float32), None, MASK)
    d_x, d_start, gradients = layers.backward(output, last, cache)
    arrays = (output, d_x, *last[0], *d_start[0], *gradients.values())
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
