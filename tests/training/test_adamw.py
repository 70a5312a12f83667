import pytest
import torch
from torch import nn

from unrolled.config import Optimizer
from unrolled.training.adamw import AdamW

RULE = Optimizer(learning_rate=0.1, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.3)
GO_ON, SKIP = torch.tensor(0.0), torch.tensor(1.0)
ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)


def parameters():
    torch.manual_seed(0)
    return {"matrix": nn.Parameter(torch.randn(5, 3)), "vector": nn.Parameter(torch.randn(7))}


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"matrix": torch.randn(5, 3, generator=generator), "vector": torch.randn(7, generator=generator)}


def test_against_pytorch():
    ours, theirs = parameters(), parameters()
    optimizer = AdamW(ours, RULE)
    reference = torch.optim.AdamW(
        [{"params": [theirs["matrix"]]}, {"params": [theirs["vector"]], "weight_decay": 0.0}],
        betas=(0.8, 0.95),
        eps=1e-6,
        weight_decay=0.3,
        foreach=False,
        fused=False,
    )
    for step in range(1, 8):
        drawn = gradients(step)
        if step == 4:  # one parameter had no part in the loss
            del drawn["vector"]
        for name, parameter in theirs.items():
            parameter.grad = drawn[name].clone() if name in drawn else None
        for group in reference.param_groups:
            group["lr"] = 0.1 / step
        reference.step()
        optimizer.step(drawn, 0.1 / step, divisor=ONE, skip=GO_ON)
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-7)


def test_a_skipped_step_leaves_no_trace():
    ours, others = parameters(), parameters()
    one, other = AdamW(ours, RULE), AdamW(others, RULE)
    for seed in (1, 2):
        one.step(gradients(seed), 0.1, divisor=ONE, skip=GO_ON)
        one.step({name: value * float("inf") for name, value in gradients(9).items()}, 0.1, divisor=ONE, skip=SKIP)
        other.step(gradients(seed), 0.1, divisor=ONE, skip=GO_ON)
    assert all(torch.equal(ours[name], others[name]) for name in ours)
    assert all((value == other.state()[name]).all() for name, value in one.state().items())


def test_gradients_are_divided():
    ours, others = parameters(), parameters()
    one, other = AdamW(ours, RULE), AdamW(others, RULE)
    one.step(gradients(1), 0.1, divisor=TWO, skip=GO_ON)
    other.step({name: value / 2.0 for name, value in gradients(1).items()}, 0.1, divisor=ONE, skip=GO_ON)
    assert all((value == other.state()[name]).all() for name, value in one.state().items())
    assert not (one.state()["first/vector"] == 0.0).any()


@pytest.mark.parametrize("kind", ["first", "second", "steps"])
def test_its_state_goes_on(kind):
    ours, others = parameters(), parameters()
    one, other = AdamW(ours, RULE), AdamW(others, RULE)
    one.step(gradients(1), 0.1, divisor=ONE, skip=GO_ON)
    with torch.no_grad():
        for name in ours:
            others[name].copy_(ours[name])
    state = one.state()
    other.load_state(state)
    one.step(gradients(2), 0.1, divisor=ONE, skip=GO_ON)
    other.step(gradients(2), 0.1, divisor=ONE, skip=GO_ON)
    assert all(torch.equal(ours[name], others[name]) for name in ours)
    assert {name.split("/")[0] for name in state} >= {kind}
    assert (state[f"{kind}/matrix"] != one.state()[f"{kind}/matrix"]).any(), "a copy, not a view"
