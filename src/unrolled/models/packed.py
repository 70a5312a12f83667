"""Weights laid out for the processor once, for models that only answer.

A matrix product first copies its matrices into blocks that fit the processor's registers and caches. For the few rows
of a decoding step that costs as much as a good part of the product, and the weight is the same at every step: here it
is stored in blocks from the start. Results differ from those of the plain layer by rounding alone.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled.models.output import Output

__all__ = ["packed"]

Module = TypeVar("Module", bound=nn.Module)

_ROWS = 1024  # for which the layout is chosen; it serves any number
_SMALL = 1 << 18  # weights, up to which the plain product of one row in float32 is the faster one: less to set up


def packed(model: Module) -> Module:
    """A copy of a model on a CPU whose linear layers are packed; it shares all other weights and cannot be trained.

    The model itself where PyTorch was built without oneDNN.
    """
    if not torch.backends.mkldnn.is_available():
        return model
    twin = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, _Packed(child.weight, child.bias))
            elif isinstance(child, Output):
                setattr(parent, name, _PackedOutput(child, parent.get_parameter("embedding.weight")))
    return twin


class _Packed(nn.Module):
    """``y = W x + b``."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(self.weight, _ROWS)
        self.is_small = weight.dtype == torch.float32 and weight.numel() <= _SMALL

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) → (..., O)."""
        if self.is_small and x.numel() == x.shape[-1]:
            return functional.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")
        return y


class _PackedOutput(nn.Module):
    """The output layer, whose matrix may be the embedding."""

    def __init__(self, output: Output, embedding: Tensor) -> None:
        super().__init__()
        self.bias = output.bias
        self.product = _Packed(embedding if output.is_tied else output.weight, output.bias)

    def forward(self, x: Tensor, embedding: Tensor, classes: Tensor | None = None) -> Tensor:
        """As of `Output`, of all classes."""
        del embedding
        assert classes is None, "only training asks for some classes"
        logits: Tensor = self.product(x)
        return logits
