"""A matrix that every step of a loop multiplies by: its gradient is one product after the loop.

Autograd alone makes a gradient of the whole matrix at each step and adds it to that of the others. For few rows this
moves more bytes than the product itself; gathered, T small products are one large one, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["Reused", "Steps", "affine"]


class Reused:
    """``y_t = x_t Wᵀ + b`` for a weight W that stays the same over the steps t of one forward pass.

    Parameters
    ----------
    weight : Tensor (O, I), or (B, O, I) with one matrix for each row of a batch
    """

    def __init__(self, weight: Tensor) -> None:
        self.steps = Steps() if weight.requires_grad and torch.is_grad_enabled() else None
        self.weight: Tensor = weight if self.steps is None else _Gathered.apply(weight, self.steps)  # type: ignore[no-untyped-call]

    def is_gathered(self) -> bool:
        """Whether the gradient of `product` is; under autocast, which chooses types a product, it is autograd's."""
        return self.steps is not None and not torch.is_autocast_enabled(self.weight.device.type)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """(R, I) → (R, O), or (B, n, I) → (B, n, O); a bias is (O,), or (B, 1, O)."""
        if not self.is_gathered():
            return _affine(x, self.weight, bias)
        y: Tensor = _Product.apply(x, self.weight, bias, self.steps)  # type: ignore[no-untyped-call]
        return y


def affine(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """A linear layer for the steps of one pass, (B, n, I) → (B, n, O): itself where nothing is gathered."""
    reused, bias = Reused(layer.weight), layer.bias
    if not reused.is_gathered():
        return layer
    return lambda x: reused.product(x.flatten(0, 1), bias).view(*x.shape[:2], -1)


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    transposed = weight.transpose(-1, -2)
    if bias is None:
        return x @ transposed
    return torch.addmm(bias, x, transposed) if x.dim() == 2 else torch.baddbmm(bias, x, transposed)


class Steps:
    """What the steps contribute to the gradient of a weight in one backward pass: the two factors of each."""

    def __init__(self) -> None:
        self._factors: list[tuple[Tensor, Tensor]] = []
        self._pass = -1

    def add(self, x: Tensor, d_y: Tensor) -> None:
        """Of a product with x (..., R, I), and the gradient (..., R, O) of its result."""
        self._forget_other_passes()
        self._factors.append((x.detach(), d_y))

    def gradient(self) -> Tensor | None:
        """``Σ_t d_y_tᵀ x_t``, (..., O, I); the factors are forgotten."""
        self._forget_other_passes()
        if not self._factors:
            return None
        x, d_y = (_joined(parts) for parts in zip(*self._factors, strict=True))
        self._factors.clear()
        return d_y.transpose(-1, -2) @ x

    def _forget_other_passes(self) -> None:
        """A pass that asks for gradients of inputs alone, or that breaks off, never comes to the weight."""
        now = torch._C._current_graph_task_id()
        if now != self._pass:
            self._factors.clear()
            self._pass = now


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


class _Gathered(torch.autograd.Function):
    """The identity; its backward pass, which comes after those of all products, adds their gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, steps: Steps) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.steps = steps
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, elsewhere: Tensor | None) -> tuple[Tensor | None, None]:
        gathered = ctx.steps.gradient()
        if gathered is None or elsewhere is None:
            return (elsewhere if gathered is None else gathered), None
        return gathered + elsewhere, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.steps = steps
        return _affine(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        ctx.steps.add(x, d_y)
        d_x = d_y @ weight if ctx.needs_input_grad[0] else None
        d_bias = d_y.sum(dim=-2, keepdim=d_y.dim() == 3) if ctx.needs_input_grad[2] else None
        return d_x, None, d_bias, None
