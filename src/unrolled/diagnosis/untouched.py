"""Leave a model, its gradients and the global random state as they were found."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["jittered", "reseed", "same_attributes", "untouched"]

Undo = Callable[[], None]


@contextmanager
def untouched(module: nn.Module | None, *, keep_weights: bool = True) -> Iterator[None]:
    """Run a block with gradients enabled, and undo what it did to a module and to random number generators.

    Restored, also after an exception: training mode, buffers, hooks and every other attribute of each submodule
    (containers and tensors inside them too), `.grad` of each parameter, and the generators of torch, NumPy and Python.

    Parameters
    ----------
    module : nn.Module or None
        None for a plain function: only the generators are restored.
    keep_weights : bool
        False for a block that trains: it then works on copies of the weights.
    """
    undo = [_generators()]
    if module is not None:
        undo += [_parameter(weight, copy=not keep_weights) for weight in module.parameters()]
    try:
        with torch.inference_mode(False), torch.enable_grad(), same_attributes(module):
            yield
    finally:
        for restore in reversed(undo):
            restore()


@contextmanager
def same_attributes(module: nn.Module | None) -> Iterator[None]:
    """Run a block on copies of a module's buffers, and undo every other change of its attributes.

    Two runs in two such blocks do not know of each other, even where a module keeps its state.
    """
    undo: list[Undo] = []
    copies: dict[int, Tensor] = {}  # shared buffers stay shared
    try:
        undo.extend(_attributes(part, copies) for part in ([] if module is None else module.modules()))
        yield
    finally:
        for restore in reversed(undo):
            restore()


@contextmanager
def jittered(module: nn.Module | None, *, size: float = 0.02) -> Iterator[None]:
    """Run a block on weights moved a little, so that a layer that merely starts at 0 does not look cut off."""
    with untouched(module, keep_weights=False):
        reseed()
        for weight in [] if module is None else module.parameters():
            if weight.is_floating_point():
                weight.data += size * torch.randn_like(weight)
        yield


def reseed(seed: int = 0) -> None:
    """Give every generator the same start, so that two runs draw the same numbers; use inside `untouched`."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - foreign models may draw from the global generator
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _generators() -> Undo:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)

    return restore


_INTERNAL = frozenset(vars(nn.Module())) - {"_buffers", "_modules", "training"}


def _attributes(part: nn.Module, copies: dict[int, Tensor]) -> Undo:
    own, buffers = dict(vars(part)), dict(part._buffers)
    kept = [value for name, value in own.items() if name not in _INTERNAL and name != "_buffers"]
    inner = [undo(value) for value in kept for undo in (_content, _object)]
    for name, value in buffers.items():
        part._buffers[name] = _copied(value, copies)
    for name, value in own.items():
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            vars(part)[name] = _copied(value, copies)

    def restore() -> None:
        _replace(vars(part), own)
        _replace(part._buffers, buffers)
        for undo in inner:
            undo()

    return restore


def _copied(value: Tensor | None, copies: dict[int, Tensor]) -> Tensor | None:
    if value is None or value.requires_grad:
        return value
    return copies.setdefault(id(value), value.clone())


def _content(value: object) -> Undo:
    """What restores the inside of a plain container, and of containers and tensors in it, at any depth."""
    if isinstance(value, dict):
        pairs, inner = dict(value), _insides(value.values())
        return lambda: _restore_all(inner, lambda: _replace(value, pairs))
    if isinstance(value, list):
        items, inner = list(value), _insides(value)
        return lambda: _restore_all(inner, lambda: value.__setitem__(slice(None), items))
    if isinstance(value, tuple):
        inner = _insides(value)
        return lambda: _restore_all(inner, lambda: None)
    return lambda: None


def _object(value: object) -> Undo:
    """What restores the attributes of an object that may keep a state, but not of the objects it refers to in turn."""
    is_foreign = type(value).__module__.partition(".")[0] not in sys.stdlib_module_names
    if not is_foreign or callable(value) or isinstance(value, Tensor) or not hasattr(value, "__dict__"):
        return lambda: None
    own, inner = dict(vars(value)), _insides(vars(value).values())
    return lambda: _restore_all(inner, lambda: _replace(vars(value), own))


def _insides(values: Iterable[object]) -> list[Undo]:
    return [_inside(item) for item in values if isinstance(item, Tensor | dict | list | tuple)]


def _inside(value: object) -> Undo:
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        kept = value.detach().clone()
        return lambda: _refill(value, kept)
    return _content(value)


def _replace(values: dict[Any, Any], pairs: dict[Any, Any]) -> None:
    values.clear()
    values.update(pairs)


def _restore_all(inner: list[Undo], outer: Callable[[], object]) -> None:
    outer()
    for restore in inner:
        restore()


def _refill(tensor: Tensor, kept: Tensor) -> None:
    if tensor.shape != kept.shape:
        tensor.data = kept
    elif not torch.equal(tensor.detach(), kept):
        with torch.no_grad():
            tensor.copy_(kept)


def _parameter(weight: nn.Parameter, *, copy: bool) -> Undo:
    gradient, values = weight.grad, weight.data
    restore_gradient = _inside(gradient)
    weight.grad = None
    if copy:
        weight.data = values.clone()

    def restore() -> None:
        weight.grad = gradient
        restore_gradient()
        if copy:
            weight.data = values

    return restore
