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
    """A copy of a model on a CPU whose linear layers are packed, all weights shared with it.

    What oneDNN has no blocks for stays as it is: layers in float64, or in bfloat16 where the processor has not.
    """
    twin = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and _has_blocks(child.weight):
                setattr(parent, name, _Packed(child.weight, child.bias))
            elif isinstance(child, Output):
                weight = parent.get_parameter("embedding.weight") if child.is_tied else child.weight
                if _has_blocks(weight):
                    setattr(parent, name, _PackedOutput(weight, child.bias))
    return twin


def _has_blocks(weight: Tensor) -> bool:
    if not torch.backends.mkldnn.is_available() or weight.numel() == 0:
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and _has_bfloat16())


def _has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16."""
    is_supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return is_supported


class _Packed(nn.Module):
    """``y = W x + b``. Where a gradient may be wanted, and for one row of a small layer, the product is plain."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
        self.is_small = weight.dtype == torch.float32 and weight.numel() <= _SMALL

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) → (..., O)."""
        is_one = self.is_small and x.numel() == x.shape[-1]
        if is_one or torch.is_grad_enabled() or x.dtype != self.weight.dtype:
            return functional.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")
        return y

    def __reduce__(self) -> tuple[type[_Packed], tuple[Tensor, Tensor | None]]:
        """Copies and pickles pack anew: blocks are memory of oneDNN."""
        return _Packed, (self.weight, self.bias)


class _PackedOutput(nn.Module):
    """The output layer, whose matrix may be the embedding."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.bias = bias
        self.product = _Packed(weight, bias)

    def forward(self, x: Tensor, embedding: Tensor, classes: Tensor | None = None) -> Tensor:
        """As of `Output`, of all classes."""
        del embedding
        assert classes is None, "only training asks for some classes"
        logits: Tensor = self.product(x)
        return logits
