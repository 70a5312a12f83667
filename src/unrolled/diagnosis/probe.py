"""Gradients with respect to embedded inputs, step by step, for any model that looks its tokens up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

from unrolled.diagnosis.batch import Batch

__all__ = ["Probe", "input_gradient_norms", "input_gradients", "is_covered"]


@dataclass(frozen=True)
class Probe:
    """A tensor to take gradients with respect to, and where its steps are.

    Attributes
    ----------
    values : Tensor
        A leaf of the graph.
    axis : int or None
        The axis of `values` that is time; none where it belongs to one step.
    step : int
        That one step.
    seen : Tensor
        What the model was given.
    """

    values: Tensor
    axis: int | None
    step: int
    seen: Tensor


@contextmanager
def input_gradients(batch: Batch) -> Iterator[tuple[Batch, list[Probe]]]:
    """Make the batch's inputs differentiable during a block.

    Real-valued inputs become leaves themselves. For token ids a zero is added to whatever `embedding` returns for
    them: for all steps at once, in either order of the axes, or step by step in their order.

    Yields
    ------
    batch : Batch
        The batch to run.
    probes : list of Probe
        Filled during the run; empty where the model does not look the inputs up, or where source and inputs are the
        same ids and cannot be told apart.
    """
    if batch.inputs.is_floating_point():
        leaf = batch.inputs.detach().clone().requires_grad_()
        yield replace(batch, inputs=leaf), [Probe(leaf, 1, 0, leaf)]
        return
    lookup = _Lookup(batch)
    with lookup:
        yield batch, lookup.probes


def is_covered(run: Callable[[Batch], Tensor], batch: Batch, other: Batch) -> bool:
    """Whether a model sees its inputs through `embedding` alone.

    Another batch is run with the embeddings of this one in the place of its own: nothing may be left of the difference.
    """
    with _Lookup(batch) as lookup:
        expected = run(batch)
    with _Lookup(other, [probe.seen for probe in lookup.probes]):
        return torch.equal(run(other), expected)


def input_gradient_norms(loss: Tensor, probes: list[Probe], steps: int) -> Tensor:
    """‖∂loss/∂input_u‖₂ over batch and embedding for each step u, shape `(T,)`."""
    found = torch.autograd.grad(loss, [probe.values for probe in probes], allow_unused=True, retain_graph=True)
    squares = torch.zeros(steps, dtype=torch.float64)
    reached = [(probe, gradient) for probe, gradient in zip(probes, found, strict=True) if gradient is not None]
    for probe, gradient in reached:
        square = gradient.detach().double().square().cpu()
        if probe.axis is None:
            squares[probe.step] += square.sum()
        else:
            squares += square.movedim(probe.axis, 0).flatten(1).sum(1)
    return squares.sqrt()


class _Lookup(TorchFunctionMode):
    """Adds a differentiable zero to each embedding of a batch's inputs, or gives recorded ones in their place."""

    def __init__(self, batch: Batch, replayed: list[Tensor] | None = None) -> None:
        super().__init__()
        self.inputs, self.next_step = batch.inputs, 0
        self.is_ambiguous = batch.source is not None and torch.equal(batch.source, batch.inputs)
        self.replayed = replayed
        self.probes: list[Probe] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        place = self._place(args[0]) if function is embedding and not self.is_ambiguous else None
        if place is None:
            return output
        if self.replayed:
            return self.replayed.pop(0)
        zero = torch.zeros_like(output, requires_grad=True)
        self.probes.append(Probe(zero, *place, output + zero))
        return self.probes[-1].seen

    def _place(self, ids: Tensor) -> tuple[int | None, int] | None:
        """Time axis of the embedded ids, or the one step they are; none where they are other ids."""
        B, T = self.inputs.shape
        if ids.numel() == B * T and ids.shape[-2:] in ((B, T), (T, B)):
            pair = ids.reshape(ids.shape[-2:])
            for axis, own in ((1, self.inputs), (0, self.inputs.T)):
                if torch.equal(pair, own):
                    return ids.dim() - 2 + axis, 0
        is_next = self.next_step < T and ids.numel() == B
        if is_next and torch.equal(ids.flatten(), self.inputs[:, self.next_step]):
            self.next_step += 1
            return None, self.next_step - 1
        return None
