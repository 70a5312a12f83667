"""Products whose weight gradient is gathered over the steps of a loop, against plain autograd."""

import gc
import weakref

import pytest
import torch

from unrolled.models.reused import Reused


def case(shape):
    generator = torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.randn(*size, dtype=torch.float64, generator=generator).requires_grad_()

    weight, x = draw(*shape, 5, 4), draw(*shape, 3, 4)
    return weight, x, draw(*shape, 1, 5) if shape else draw(5), draw(5, 4).detach()


def loop(multiply, x, back, steps):
    """A recurrence in which each step reads what the step before made."""
    total = x.new_zeros(())
    for t in range(steps):
        y = multiply(x)
        x, total = torch.tanh(y @ back), total + (t + 1) * y.square().sum()
    return total


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_equal_plain_ones(steps, shape, has_bias):
    weight, x, bias, back = case(shape)
    bias = bias if has_bias else None
    inputs = [weight, x, *([bias] if has_bias else [])]
    reused = Reused(weight)
    fast = loop(lambda x: reused.product(x, bias), x, back, steps) + reused.weight.square().sum()
    plain = loop(lambda x: x @ weight.mT + (bias if has_bias else 0), x, back, steps) + weight.square().sum()
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
    for a, b in zip(torch.autograd.grad(fast, inputs), torch.autograd.grad(plain, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_second_backward_pass_counts_nothing_twice():
    weight, x, _, back = case(())
    reused = Reused(weight)
    loss = loop(reused.product, x, back, 3)
    first, second = (torch.autograd.grad(loss, weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_pass_that_does_not_reach_the_weight_leaves_nothing_behind(breaks):
    """One for the inputs alone, or one that breaks off; then one for the weight."""
    weight, x, _, back = case(())
    reused = Reused(weight)
    first = x * 1.0
    if breaks:
        first.register_hook(lambda gradient: gradient[99])
    loss = loop(reused.product, first, back, 3)
    try:
        torch.autograd.grad(loss, x, retain_graph=True)
    except IndexError:
        assert breaks
    (found,) = torch.autograd.grad(loss, weight)
    (expected,) = torch.autograd.grad(loop(lambda x: x @ weight.mT, x, back, 3), weight)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_weight_gradient_is_one_product():
    """What it is for: one product of all rows, whatever the number of steps."""
    weight, x, _, back = case(())
    reused = Reused(weight)
    loss = loop(reused.product, x, back, 7)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (gradient,) = torch.autograd.grad(loss, weight)
    products = [event for event in profile.events() if event.name == "aten::mm"]
    assert len(products) == 6 + 7 + 1  # through tanh(y back) six times, to x of each step, to the weight once
    assert gradient.shape == weight.shape


def test_nothing_is_kept_where_no_gradient_is_wanted():
    weight, x, bias, _ = case(())
    with torch.no_grad():
        reused = Reused(weight)
        assert reused.steps is None
        assert reused.weight is weight
        torch.testing.assert_close(reused.product(x, bias), x @ weight.T + bias)
    frozen = Reused(weight.detach())
    frozen.product(x).sum().backward()
    assert frozen.steps is None
    torch.testing.assert_close(x.grad, weight.sum(0).expand_as(x))


def test_a_pass_is_freed_without_the_collector():
    """No cycle holds the graph: memory stays flat over training."""
    weight, x, _, back = case(())
    gc.disable()
    try:
        reused = Reused(weight)
        loss = loop(reused.product, x, back, 3)
        steps = weakref.ref(reused.steps)
        loss.backward()
        del reused, loss
        assert steps() is None
    finally:
        gc.enable()
