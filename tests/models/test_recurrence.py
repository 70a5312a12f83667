"""The fast recurrences against their plain twins, finite differences and torch.nn."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from unrolled import config, models
from unrolled.models.recurrence import (
    gru_scan,
    gru_scan_plain,
    lstm_scan,
    lstm_scan_plain,
    rnn_scan,
    rnn_scan_plain,
)
from unrolled.models.recurrent import GRUState, LSTMState, Ragged, RecurrentLayers, Tokens
from unrolled.models.reused import Reused
from unrolled.parameters import Sizes, initialise, inventory

H, B = 7, 3


def of_weight(scan):
    """The scan as a function of tensors alone."""
    return lambda gates, weight, *rest: scan(gates, Reused(weight), *rest)


TWINS = {
    "lstm": (of_weight(lstm_scan), of_weight(lstm_scan_plain)),
    "gru": (of_weight(gru_scan), of_weight(gru_scan_plain)),
    "rnn": (of_weight(rnn_scan), of_weight(rnn_scan_plain)),
    "relu": (of_weight(partial(rnn_scan, is_relu=True)), of_weight(partial(rnn_scan_plain, is_relu=True))),
}
GATES = {"lstm": 4, "gru": 3, "rnn": 1, "relu": 1}


def arguments(cell: str, directions: int, steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    G = GATES[cell]
    values = [draw(directions, steps, B, G * H), draw(directions, G * H, H)]
    if cell == "gru":
        values.append(draw(directions, G * H))
    values += [draw(directions, B, H) for _ in range(2 if cell == "lstm" else 1)]
    return values


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", TWINS)
def test_fast_equals_plain(cell, directions, steps):
    fast, plain = TWINS[cell]
    inputs = arguments(cell, directions, steps)
    outcomes = []
    for scan in (fast, plain):
        result = scan(*inputs)
        result = result if isinstance(result, tuple) else (result,)
        weights = [torch.linspace(-1, 2, part.numel(), dtype=torch.float64).view_as(part) for part in result]
        loss = sum((w * part).sum() for w, part in zip(weights, result, strict=True))
        outcomes.append([*result, *torch.autograd.grad(loss, inputs)])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cell", TWINS)
def test_gradients_by_finite_differences(cell):
    assert torch.autograd.gradcheck(TWINS[cell][0], arguments(cell, 2, 3))


@pytest.mark.parametrize("cell", TWINS)
def test_gradients_of_inputs_alone_change_none_of_weights(cell):
    inputs = arguments(cell, 1, 4)
    result = TWINS[cell][0](*inputs)
    loss = (result[0] if isinstance(result, tuple) else result).square().sum()
    torch.autograd.grad(loss, inputs[0], retain_graph=True)
    (after,) = torch.autograd.grad(loss, inputs[1], retain_graph=True)
    (again,) = torch.autograd.grad(loss, inputs[1])
    plain = TWINS[cell][1](*inputs)
    (expected,) = torch.autograd.grad((plain[0] if isinstance(plain, tuple) else plain).square().sum(), inputs[1])
    for found in (after, again):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cell", TWINS)
def test_the_incoming_gradient_is_left_alone(cell):
    inputs = arguments(cell, 1, 4)
    result = TWINS[cell][0](*inputs)
    result = result if isinstance(result, tuple) else (result,)
    incoming = [torch.ones_like(part) for part in result]
    torch.autograd.grad(result, inputs, incoming)
    assert all((part == 1).all() for part in incoming)


# --- layers against torch.nn -----------------------------------------------------------------------------------------


def twin_layers(cell: str, num_layers: int, both: bool) -> tuple[RecurrentLayers, nn.Module]:
    """Our layers and torch's with the same random weights, biases included."""
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](
        5, H, num_layers=num_layers, bidirectional=both, batch_first=True, dtype=torch.float64
    )
    settings = config.Recurrent(cell=cell, hidden_size=H, num_layers=num_layers, dropout=0.0)
    ours = RecurrentLayers(settings, 5, is_bidirectional=both).double()
    with torch.no_grad():
        for number, layer in enumerate(ours):
            for direction, suffix in ((layer.fwd, ""), *([(layer.bwd, "_reverse")] if both else [])):
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    source = getattr(theirs, f"{name}_l{number}{suffix}")
                    nn.init.normal_(source, std=0.5)
                    getattr(direction, name).copy_(source)
    return ours, theirs


def run(layers, inputs, start, ragged):
    return layers(inputs, start, ragged, layers.weights())


@pytest.mark.parametrize("both", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_layers_equal_torch_on_ragged_rows(cell, num_layers, both):
    ours, theirs = twin_layers(cell, num_layers, both)
    lengths = torch.tensor([11, 1, 5])
    x = torch.randn(B, 11, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(11) < lengths.unsqueeze(1)
    D = 2 if both else 1
    parts = 2 if cell == "lstm" else 1
    start = [torch.randn(num_layers * D, B, H, dtype=torch.float64).requires_grad_() for _ in range(parts)]

    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, last = theirs(packed, tuple(start) if parts == 2 else start[0])
    expected, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=11)
    last = last if isinstance(last, tuple) else (last,)

    # torch keeps layer-major rows (layer 0 forward, layer 0 backward, layer 1 forward, ...)
    kind = LSTMState if cell == "lstm" else GRUState
    states = tuple(
        kind(*(torch.cat([part[layer * D + d] for d in range(D)], dim=-1) for part in start))
        for layer in range(num_layers)
    )
    result, finals = run(ours, x, states, Ragged.from_mask(mask))
    torch.testing.assert_close(result[mask], expected[mask], rtol=0, atol=1e-12)
    for layer, state in enumerate(finals):
        for ours_part, part in zip(state, last, strict=True):
            joined = torch.cat([part[layer * D + d] for d in range(D)], dim=-1)
            torch.testing.assert_close(ours_part, joined, rtol=0, atol=1e-12)

    scale = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected) * mask.unsqueeze(-1)
    loss = (result * scale).sum() + sum(part.square().sum() for state in finals for part in state)
    expected_loss = (expected * scale).sum() + sum(part.square().sum() for part in last)
    for grad, expected_grad in zip(
        torch.autograd.grad(loss, start), torch.autograd.grad(expected_loss, start), strict=True
    ):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_weight_gradients_equal_torch(cell):
    ours, theirs = twin_layers(cell, 2, both=True)
    x = torch.randn(B, 5, 5, dtype=torch.float64)
    run(ours, x, None, Ragged.from_mask(torch.ones(B, 5, dtype=torch.bool)))[0].square().sum().backward()
    theirs(x)[0].square().sum().backward()
    for number, layer in enumerate(ours):
        for direction, suffix in ((layer.fwd, ""), (layer.bwd, "_reverse")):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                expected = getattr(theirs, f"{name}_l{number}{suffix}").grad
                torch.testing.assert_close(getattr(direction, name).grad, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("both", [False, True])
def test_a_table_of_products_equals_a_product_a_token(both):
    """Fewer symbols than tokens or more: two ways to the same gates."""
    ours, _ = twin_layers("lstm", 1, both)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(6, 5, dtype=torch.float64, generator=generator)
    offset = torch.randn(B, 5, dtype=torch.float64, generator=generator)
    ids = torch.randint(0, 6, (B, 7), generator=generator)
    ragged = Ragged.from_mask(torch.arange(7) < torch.tensor([[7], [3], [1]]))
    small = run(ours, Tokens(ids, table, offset), None, ragged)
    padded = torch.cat([table, table.new_zeros(100, 5)])  # too many rows to pay for
    large = run(ours, Tokens(ids, padded, offset), None, ragged)
    vectors = run(ours, table[ids] + offset.unsqueeze(1), None, ragged)
    for other in (large, vectors):
        torch.testing.assert_close(small[0], other[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(small[1][0].c, other[1][0].c, rtol=0, atol=1e-12)


def test_final_state_of_both_directions_has_seen_the_whole_source():
    """The backward half of the summary must depend on the first symbol *and* on the last one."""
    ours, _ = twin_layers("lstm", 1, both=True)
    x = torch.randn(1, 3, 5, dtype=torch.float64).requires_grad_()
    _, (state,) = run(ours, x, None, Ragged.from_mask(torch.ones(1, 3, dtype=torch.bool)))
    for half in state.h.split(H, dim=-1):
        (gradient,) = torch.autograd.grad(half.sum(), x, retain_graph=True)
        assert (gradient.abs().sum(-1) > 0).all()


def test_rows_of_both_directions_start_the_decoder_layer_by_layer():
    """Layer l starts from rows (2l, 2l + 1) of PyTorch's final state: forward and backward side by side."""
    settings = config.Seq2Seq(
        encoder=config.RecurrentEncoder(embedding_dim=5, hidden_size=H, num_layers=2, dropout=0.0),
        decoder=config.RecurrentDecoder(embedding_dim=5, hidden_size=2 * H, num_layers=2, dropout=0.0),
    )
    sizes = Sizes(source=9, features=0, target=8)
    weights = initialise(inventory(settings, sizes), seed=1)
    for name in weights:
        if name.startswith("decoder.start"):  # projections that change nothing
            weights[name] = np.eye(2 * H) if name.endswith("weight") else np.zeros(2 * H)
    model = models.build(settings, sizes, weights).double()
    theirs = nn.LSTM(5, H, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for number, layer in enumerate(model.encoder.layers):
            for direction, suffix in ((layer.fwd, ""), (layer.bwd, "_reverse")):
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(theirs, f"{name}_l{number}{suffix}").copy_(getattr(direction, name))
    source = torch.tensor([[4, 5, 6, 7, 8]])
    _, (h, c) = theirs(model.encoder.embedding(source))
    memory = model.encode(source, torch.ones(1, 5, dtype=torch.bool))
    for number, state in enumerate(model.initial_state(memory, 1).layers):
        rows = slice(2 * number, 2 * number + 2)
        torch.testing.assert_close(state.h[0], torch.tanh(h[rows, 0].flatten()), rtol=0, atol=1e-12)
        torch.testing.assert_close(state.c[0], c[rows, 0].flatten(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [7, 8, 40])
def test_the_fused_kernel_equals_the_loop(steps):
    """In float32 and without padding an LSTM runs in oneDNN's kernel, from some steps on; else in the loop."""
    ours, _ = twin_layers("lstm", 2, both=False)
    ours = ours.float()
    x = torch.randn(B, steps, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    start = tuple(LSTMState(*torch.randn(2, B, H).unbind(0)) for _ in range(2))
    outcomes = []
    for layers, ragged in ((ours, None), (ours, Ragged.from_mask(torch.ones(B, steps, dtype=torch.bool)))):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            output, states = run(layers, x, start, ragged)
        is_fused = any("mkldnn_rnn_layer" in event.key for event in profile.key_averages())
        assert is_fused == (ragged is None and steps >= 8)
        loss = output.square().sum() + sum(part.square().sum() for state in states for part in state)
        leaves = [x, *layers.parameters()]
        outcomes.append([output, *states[0], *states[1], *torch.autograd.grad(loss, leaves)])
    for fused, loop in zip(*outcomes, strict=True):
        torch.testing.assert_close(fused, loop, rtol=1e-4, atol=1e-4)


# --- start values ----------------------------------------------------------------------------------------------------


def test_effective_forget_bias_is_one():
    settings = config.Seq2Seq()
    sizes = Sizes(source=20, features=0, target=20)
    weights = initialise(inventory(settings, sizes), seed=1)
    hidden = config.RecurrentEncoder().hidden_size
    names = [name for name in weights if name.endswith("bias_ih")]
    assert len(names) == 3
    for name in names:
        effective = (weights[name] + weights[name.replace("bias_ih", "bias_hh")]).reshape(4, hidden)
        np.testing.assert_array_equal(effective[1], 1.0)
        np.testing.assert_array_equal(effective[[0, 2, 3]], 0.0)
    assert abs(float(torch.sigmoid(torch.tensor(effective[1, 0]))) - 0.731059) < 1e-6
    model = models.build(settings, sizes, weights)
    assert torch.equal(
        model.decoder.layers[0].fwd.bias_ih.data, torch.from_numpy(weights["decoder.layers.0.fwd.bias_ih"])
    )
