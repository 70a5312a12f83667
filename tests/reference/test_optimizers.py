"""Optimisers against values by hand and PyTorch's; twenty steps of both engines."""

from __future__ import annotations

import numpy as np
import pytest
from reference_cases import ARCHITECTURES, NAMES, SIZES, make_batch, normal, random_weights, settings_of

from unrolled import reference
from unrolled.reference.optimizers import adamw, adamw_start, clip, sgd, sgd_start

WEIGHTS = {"matrix": normal(np.random.default_rng(0), 3, 5), "bias": normal(np.random.default_rng(1), 5)}


def gradients_of(step):
    return {name: normal(np.random.default_rng(step), *weight.shape) for name, weight in WEIGHTS.items()}


def test_sgd_by_hand():
    weights, velocities = {"w": np.array([1.0])}, sgd_start({"w": np.array([1.0])})
    weights, velocities = sgd(weights, {"w": np.array([2.0])}, velocities, learning_rate=0.1, momentum=0.5)
    assert weights["w"] == pytest.approx(0.8)
    weights, velocities = sgd(weights, {"w": np.array([4.0])}, velocities, learning_rate=0.1, momentum=0.5)
    assert (weights["w"], velocities["w"]) == (pytest.approx(0.3), 5.0)


def test_the_settings_of_adamw_that_nobody_names():
    """A gradient as small as ε is halved by it; the second step shows both betas, a matrix its decay."""
    weights, gradient = {"w": np.array([[1.0]])}, {"w": np.array([[1e-8]])}
    weights, state = adamw(weights, gradient, adamw_start(weights), learning_rate=0.1)
    assert weights["w"] == pytest.approx((1 - 0.1 * 0.01) - 0.1 / 2, rel=1e-12)
    _, state = adamw(weights, {"w": np.array([[0.0]])}, state, learning_rate=0.1)
    assert state.first["w"] == pytest.approx(0.9 * 0.1 * 1e-8, rel=1e-12)
    assert state.second["w"] == pytest.approx(0.98 * 0.02 * 1e-16, rel=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_ten_steps_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    theirs = {key: torch.nn.Parameter(torch.tensor(weight)) for key, weight in WEIGHTS.items()}
    groups = [
        {"params": [theirs["matrix"]], "weight_decay": 0.1 if name == "adamw" else 0.0},
        {"params": [theirs["bias"]], "weight_decay": 0.0},
    ]
    if name == "sgd":
        ours, start, options = sgd, sgd_start, {"momentum": 0.9}
        optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    else:
        ours, start, options = adamw, adamw_start, {"beta2": 0.99, "epsilon": 1e-3, "weight_decay": 0.1}
        optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-3)
    weights, state = dict(WEIGHTS), start(WEIGHTS)
    for step in range(10):
        gradients = gradients_of(step)
        weights, state = ours(weights, gradients, state, learning_rate=0.01, **options)
        for key, parameter in theirs.items():
            parameter.grad = torch.tensor(gradients[key])
        optimizer.step()
    for key, parameter in theirs.items():
        np.testing.assert_allclose(weights[key], parameter.detach().numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("update", "start"), [(sgd, sgd_start), (adamw, adamw_start)])
def test_a_step_changes_nothing_in_place_and_keeps_the_type(update, start):
    weights = {name: weight.astype(np.float32) for name, weight in WEIGHTS.items()}
    gradients = {name: gradient.astype(np.float32) for name, gradient in gradients_of(0).items()}
    before, state = {name: weight.copy() for name, weight in weights.items()}, start(weights)
    moved, _ = update(weights, gradients, state, learning_rate=0.1)
    again, _ = update(weights, gradients, state, learning_rate=0.1)
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight, before[name])
        np.testing.assert_array_equal(moved[name], again[name])
        assert moved[name].dtype == np.float32
        assert not np.array_equal(moved[name], weight)


def test_clipping():
    clipped = clip({"a": np.array([3.0]), "b": np.array([4.0, 0.0])}, 1.0)
    assert clipped.norm == 5.0
    np.testing.assert_allclose(clipped.gradients["a"], [0.6])
    np.testing.assert_allclose(clipped.gradients["b"], [0.8, 0.0])
    small = {"a": np.array([0.3])}
    assert clip(small, 1.0).gradients is small


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_broken_gradient_is_left_to_be_seen(value):
    gradients = {"a": np.array([0.4, value, 2.3])}
    clipped = clip(gradients, 0.5)
    assert not np.isfinite(clipped.norm)
    assert clipped.gradients is gradients


@pytest.mark.parametrize(("encoder", "decoder"), ARCHITECTURES, ids=NAMES)
def test_twenty_steps_of_both_engines_agree(encoder, decoder):
    torch, models = pytest.importorskip("torch"), pytest.importorskip("unrolled.models")
    settings, batch = settings_of(encoder, decoder), make_batch()
    weights = random_weights(settings, SIZES, scale=0.3)
    theirs = models.build(settings, SIZES, weights).eval()
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": 0.01},
            {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=1e-2,
        betas=(0.9, 0.98),
        eps=1e-4,  # so that gradients of 1e-16, where the true one is 0, are not blown up
    )
    source, mask, inputs, labels = map(torch.tensor, (batch.source, batch.source_mask, batch.inputs, batch.labels))
    state = adamw_start(weights)
    for _ in range(20):
        memory = theirs.encode(source, mask)
        logits = theirs.decode(inputs, memory, theirs.initial_state(memory, len(inputs))).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        found = reference.build(settings, SIZES, weights).loss_and_gradients(batch, label_smoothing=0.1)
        assert found.loss / found.num_labels == pytest.approx(loss.item(), abs=1e-9)
        clipped = clip({name: gradient / found.num_labels for name, gradient in found.gradients.items()}, 1.0)
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in theirs.parameters() if p.grad is not None]))
        assert clipped.norm == pytest.approx(norm.item(), abs=1e-9)
        for parameter in theirs.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = gradient * (1.0 / norm).clamp(max=1.0)
        optimizer.step()
        weights, state = adamw(weights, clipped.gradients, state, learning_rate=1e-2, epsilon=1e-4)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(weights[name], parameter.detach().numpy(), rtol=0, atol=1e-9, err_msg=name)
