"""See the operations under a model: attention, its scale, and nonlinearities, however they are written.

A dispatch mode watches the operations that any Python code ends in. Three marks travel with tensors: a constant
factor (`x / √K`), "this is a product of queries and keys", and "these are softmax weights". Where weights meet values,
the axis that is summed is known, the scale is exact, and nothing depends on names or on how the code is laid out. What
an unknown operation makes of a scaled tensor has an unknown factor, about which nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unrolled.diagnosis.adapter import Subject

__all__ = ["Attention", "Nonlinearity", "Operations", "observed"]

_VIEWS = {
    "view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "unsqueeze", "squeeze", "slice",
    "select", "clone", "contiguous", "alias", "detach", "_to_copy", "split", "unsafe_split", "split_with_sizes",
    "chunk", "unbind", "as_strided", "unsafe_chunk", "_reshape_alias", "unflatten", "flatten", "lift_fresh",
}  # fmt: skip
_MASKS = {
    "masked_fill", "where", "add", "sub", "clamp", "maximum", "index_put", "_index_put_impl", "tril", "triu",
    "nan_to_num",
}  # fmt: skip
"""Some entries are set or moved, the others stay."""
_LINEAR = {
    "cat", "stack", "neg", "roll", "flip", "index", "index_select", "gather", "repeat", "repeat_interleave",
    "view_as_complex", "view_as_real",
}  # fmt: skip
"""Entries are put together or turned around: a common factor of what goes in is one of what comes out."""
_FRESH = {"convolution", "native_layer_norm", "native_group_norm", "native_batch_norm"}
"""The size of what goes in is lost: a factor before them is no part of a scale."""
_PRODUCTS = {"bmm", "mm", "baddbmm", "addmm"}
_SOFTMAX = {"_softmax", "_safe_softmax", "softmax"}
_NONLINEAR = {"relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_"}


@dataclass(frozen=True)
class Attention:
    """One attention: the weights as they meet the values.

    Attributes
    ----------
    module : str
        Where the softmax is taken.
    weights : Tensor
        `(..., T, S)`, the summed axis last.
    scores : Tensor or None
        The softmax's input, in the same order where it has the same shape.
    head_dim : int or None
        Width K of the product of queries and keys; none for scores that are no product.
    factor : float or None
        What the product was multiplied by in all; none where that is not a constant.
    is_normalised : bool
        Whether queries or keys have length 1, so that any scale may be right.
    """

    module: str
    weights: Tensor
    scores: Tensor | None
    head_dim: int | None
    factor: float | None
    is_normalised: bool


@dataclass(frozen=True)
class Nonlinearity:
    """Values before and after one nonlinearity, units last: `(positions, units)`.

    `spread` is the standard deviation of each unit's input over inputs of the same length in random directions, for
    units right after a linear layer; 0 for others.
    """

    module: str
    kind: str
    before: Tensor
    after: Tensor
    spread: Tensor


@dataclass(frozen=True)
class _Mark:
    """What is known about a tensor."""

    factor: float | None = 1.0
    head_dim: int | None = None
    is_normalised: bool = False
    softmax: int | None = None
    pair: tuple[Tensor, Tensor] | None = None
    spread: Tensor | None = None

    @property
    def is_attention(self) -> bool:
        """Whether these are scores or weights."""
        return self.head_dim is not None or self.softmax is not None

    def says(self) -> int:
        """How much is known: of scores and a mask, the scores' mark is the result's."""
        return 2 if self.is_attention else int(self is not _NOTHING)


_NOTHING = _Mark()
_UNKNOWN = _Mark(factor=None)


@dataclass(frozen=True)
class _Softmax:
    module: str
    scores: Tensor
    mark: _Mark


@dataclass
class Operations(TorchDispatchMode):
    """What was seen during `observed`."""

    weights: set[int] = field(default_factory=set)
    attentions: list[Attention] = field(default_factory=list)
    nonlinear: dict[tuple[str, str, int], list[tuple[Tensor, Tensor, Tensor]]] = field(default_factory=dict)
    stack: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._marks: dict[Any, tuple[Tensor, _Mark]] = {}
        self._softmaxes: list[_Softmax] = []
        self._filled: set[int] = set()  # memory that scaled values were written into, piece by piece
        self._order: dict[tuple[str, str], int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and move the marks on."""
        name = function.__name__.split(".")[0]
        before = args[0].detach().clone() if name in _NONLINEAR else None
        spread = self._mark(args[0]).spread if name in _NONLINEAR else None
        output = function(*args, **(kwargs or {}))
        if before is not None:
            self._keep_nonlinear(name.rstrip("_"), before, output, spread)
        if name.startswith("_scaled_dot_product") and "backward" not in name:
            names = [argument.name for argument in function._schema.arguments]
            self._fused(dict(zip(names, args, strict=False)) | (kwargs or {}))
        elif name in _SOFTMAX:
            self._softmaxes.append(_Softmax(self._module, args[0].detach().clone(), self._mark(args[0])))
            self._set(output, _Mark(softmax=len(self._softmaxes) - 1))
        elif name in _PRODUCTS:
            self._product(args, kwargs or {}, output)
        elif name == "sum" and len(args) > 1 and self._mark(args[0]).pair is not None:
            self._summed(args[0], args[1], output)
        else:
            self._move(name, args, output)
        return output

    @property
    def _module(self) -> str:
        return self.stack[-1] if self.stack else ""

    # --- marks -------------------------------------------------------------------------------------------------------

    def _mark(self, tensor: Any) -> _Mark:
        found = self._marks.get(_key(tensor)) if isinstance(tensor, Tensor) else None
        if found is not None:
            return found[1]
        return _UNKNOWN if isinstance(tensor, Tensor) and _storage(tensor) in self._filled else _NOTHING

    def _set(self, tensor: Tensor, mark: _Mark) -> None:
        self._marks[_key(tensor)] = (tensor, mark)  # the tensor is kept, so that its storage is not reused

    def _move(self, name: str, args: Any, output: Any) -> None:
        mark = self._moved(name.rstrip("_"), args)
        if name == "copy_" and mark.factor != 1.0:
            self._filled.add(_storage(output))
        for tensor in output if isinstance(output, list | tuple) else [output]:
            if isinstance(tensor, Tensor) and (mark is not _NOTHING or _key(tensor) in self._marks):
                self._set(tensor, mark)

    def _moved(self, name: str, args: Any) -> _Mark:
        """The mark of the result of views, constant factors, masks, elementwise products, and all else."""
        if name in ("mul", "div"):
            return self._scaled(name, args)
        if name == "copy":
            return self._mark(args[1])
        if name in _FRESH:
            return _NOTHING
        parts = [part for arg in args for part in (arg if isinstance(arg, list | tuple) else [arg])]
        tensors = _live([part for part in parts if isinstance(part, Tensor)])
        marks = [self._mark(tensor) for tensor in tensors] or [_NOTHING]
        if name in ("add", "sub") and len({mark.softmax for mark in marks} - {None}) > 1:  # weights of two attentions
            return _UNKNOWN
        if name in _VIEWS or name in _MASKS:
            return max(marks, key=_Mark.says)
        return _joint(marks, is_linear=name in _LINEAR)

    def _scaled(self, name: str, args: Any) -> _Mark:
        one, other = args[0], args[1]
        if isinstance(one, Tensor) and one.numel() == 1 and isinstance(other, Tensor) and other.numel() > 1:
            one, other = (other, one) if name == "mul" else (one, other)
        mark = self._mark(one)
        constant = _constant(other)
        if constant is not None and mark.factor is not None:
            return replace(mark, factor=mark.factor * constant if name == "mul" else mark.factor / constant)
        if constant is not None or not isinstance(other, Tensor) or other.numel() == 1:
            return replace(mark, factor=None)
        if name == "div":
            return _joint([self._mark(part) for part in _live([one, other])], is_linear=False)
        for marked, mask in ((mark, other), (self._mark(other), one)):
            if marked.is_attention and _is_binary(mask):
                return marked
        return _Mark(self._joint_factor(one, other), pair=(one, other))

    # --- products ----------------------------------------------------------------------------------------------------

    def _product(self, args: Any, kwargs: dict[str, Any], output: Tensor) -> None:
        left, right = args[-2:]
        if self.weights.isdisjoint({_storage(left), _storage(right)}):  # weights of the model are no values
            if self._mark(left).softmax is not None:
                self._consumed(left, left)
            elif self._mark(right).softmax is not None:
                self._consumed(right, right.transpose(-2, -1))
            factor = self._joint_factor(left, right)
            alpha = kwargs.get("alpha", 1)
            mark = _Mark(None if factor is None else factor * alpha, left.shape[-1], _unit(left) or _unit(right.mT))
            self._set(output, mark)
        elif left.dim() == 2 and _storage(right) in self.weights:  # a linear layer: (n, D) times (D, units)
            spread = right.norm(dim=0) * left.square().mean().sqrt()
            self._set(output, _Mark(spread=spread.detach()))
        elif _key(output) in self._marks:
            self._set(output, _NOTHING)

    def _joint_factor(self, one: Tensor, other: Tensor) -> float | None:
        product = 1.0
        for part in _live([one, other]):
            factor = self._mark(part).factor
            if factor is None:
                return None
            product *= factor
        return product

    def _summed(self, tensor: Tensor, axes: Any, output: Tensor) -> None:
        """A sum over a product of two tensors is a contraction: weights and values, or queries and keys."""
        mark = self._mark(tensor)
        pair = mark.pair
        axis = axes[0] if isinstance(axes, list | tuple) and len(axes) == 1 else axes
        if pair is None or not isinstance(axis, int):
            return
        axis %= tensor.dim()
        for weights in pair:
            if self._mark(weights).softmax is not None:
                self._consumed(weights, _summed_last(weights, tensor.shape, axis))
                return
        if self.weights.isdisjoint({_storage(pair[0]), _storage(pair[1])}):
            self._set(output, _Mark(mark.factor, tensor.shape[axis]))

    def _consumed(self, marked: Tensor, weights: Tensor) -> None:
        number = self._mark(marked).softmax
        assert number is not None
        softmax = self._softmaxes[number]
        if weights.numel() < softmax.scores.numel():  # a part of the weights, such as all but an attention sink
            return
        scores = softmax.scores.reshape(weights.shape) if softmax.scores.shape[-2:] == weights.shape[-2:] else None
        mark = softmax.mark
        self.attentions.append(
            Attention(
                softmax.module,
                weights.detach().clone(),
                scores,
                mark.head_dim,
                mark.factor,
                mark.is_normalised,
            )
        )

    def _fused(self, given: dict[str, Any]) -> None:
        """The weights of fused attention, from the same inputs."""
        query, key = given["query"].detach().float(), given["key"].detach().float()
        scale = given.get("scale")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        if query.shape[1] != key.shape[1]:  # grouped queries share their keys
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = (query @ key.mT) * scale  # (B, N, T, S)
        mask = given.get("attn_mask", given.get("attn_bias"))
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        if given.get("is_causal"):
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~visible, -torch.inf)
        factor = self._joint_factor(given["query"], given["key"])
        factor = None if factor is None else factor * scale
        weights = scores.softmax(-1).nan_to_num(0.0)  # a row without keys gives 0
        unit = _unit(query) or _unit(key)
        self.attentions.append(Attention(self._module, weights, scores, query.shape[-1], factor, unit))

    def _keep_nonlinear(self, kind: str, before: Tensor, after: Tensor, spread: Tensor | None) -> None:
        place = self._order.get((self._module, kind), 0)
        self._order[self._module, kind] = place + 1
        spread = before.new_zeros(before.shape[-1:]) if spread is None else spread
        call = before, after.detach().clone(), spread
        self.nonlinear.setdefault((self._module, kind, place), []).append(call)

    def entered(self, name: str) -> None:
        """A module's forward begins: its operations are counted from 0 again."""
        self.stack.append(name)
        for key in [key for key in self._order if key[0] == name]:
            del self._order[key]

    def nonlinearities(self, batch_size: int) -> Iterator[Nonlinearity]:
        """All nonlinearities; calls that see one step each, as in a loop over time, are joined."""
        for (module, kind, _), calls in self.nonlinear.items():
            flat = [[part.reshape(-1, part.shape[-1]) for part in call] for call in calls if call[0].dim() > 1]
            single = [call for call in flat if len(call[0]) <= batch_size]
            for before, after, spread in (call for call in flat if len(call[0]) > batch_size):
                yield Nonlinearity(module, kind, before, after, spread[0])
            if single and len({call[0].shape[1] for call in single}) == 1:
                before, after, spread = (torch.cat(part) for part in zip(*single, strict=True))
                yield Nonlinearity(module, kind, before, after, spread.amax(0))


@contextmanager
def observed(subject: Subject) -> Iterator[Operations]:
    """Watch the operations of a block and the modules that they happen in."""
    operations = Operations({_storage(weight) for weight in subject.parameters.values()})
    handles: list[Any] = []
    modules: list[tuple[str, nn.Module]] = [] if subject.module is None else list(subject.module.named_modules())

    def enter(name: str) -> Any:
        return lambda *_: operations.entered(name)

    def leave(*_: Any) -> None:
        operations.stack.pop()

    try:
        for name, module in modules:
            handles.append(module.register_forward_pre_hook(enter(name)))
            handles.append(module.register_forward_hook(leave, always_call=True))
        with operations:
            yield operations
    finally:
        for handle in handles:
            handle.remove()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _key(tensor: Tensor) -> tuple[Any, ...]:
    """Identity of a tensor's memory: views come as new objects over the same storage."""
    return _storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())


def _summed_last(weights: Tensor, shape: torch.Size, axis: int) -> Tensor:
    """Weights that were broadcast against values, without the values' own axes and with the summed axis last."""
    aligned = weights.reshape([1] * (len(shape) - weights.dim()) + list(weights.shape))
    is_own = [place == axis or size > 1 or shape[place] == 1 for place, size in enumerate(aligned.shape)]
    return aligned[tuple(slice(None) if own else 0 for own in is_own)].movedim(sum(is_own[:axis]), -1)


def _live(tensors: list[Tensor]) -> list[Tensor]:
    """Those that weights lead to; masks, tables of angles and other constants say nothing about a scale."""
    return [tensor for tensor in tensors if tensor.requires_grad] or tensors


def _joint(marks: list[_Mark], *, is_linear: bool) -> _Mark:
    """What is known of the result of an operation on several tensors."""
    known = {(mark.factor, mark.head_dim, mark.is_normalised) for mark in marks}
    if all(factor == 1.0 and (width is None or not is_linear) for factor, width, _ in known):
        return _NOTHING
    return _Mark(*known.pop()) if is_linear and len(known) == 1 else _UNKNOWN


def _constant(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad:
        return float(value)
    return None


def _is_binary(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


def _unit(vectors: Tensor) -> bool:
    """Whether all vectors (last axis) have length 1, as in cosine attention."""
    lengths = vectors.detach().float().norm(dim=-1)
    return bool(((lengths - 1).abs() < 1e-3).all())
