"""One optimiser step: forward, backward, clip, AdamW, and no step at all where a gradient is not finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unrolled import config
from unrolled.models.contract import SequenceModel
from unrolled.training.adamw import AdamW
from unrolled.training.device import to_host
from unrolled.training.objective import MicroBatch, Objective
from unrolled.training.processes import Processes

__all__ = ["Launched", "StepNumbers", "Stepper"]


@dataclasses.dataclass(frozen=True)
class StepNumbers:
    """What a step came to, on the host."""

    loss: float
    """Nats a label."""
    gradient_norm: float
    """Before clipping."""
    non_finite: str | None
    """The first parameter whose gradient was not finite, or `loss`; none if the step was taken."""


@dataclasses.dataclass(frozen=True)
class Launched:
    """A step whose numbers are still where they were computed."""

    names: Sequence[str]
    numbers: Tensor
    """Loss, total norm, and the norm of each parameter's gradient, (2 + P,)."""

    def read(self) -> StepNumbers:
        """Wait for the step and read its numbers, in one transfer."""
        loss, total, *norms = self.numbers.tolist()
        broken = (name for name, norm in zip(self.names, norms, strict=True) if not _is_finite(norm))
        first = None if _is_finite(total) else next(broken, "all together")
        return StepNumbers(loss=loss, gradient_norm=total, non_finite=first)


class Stepper:
    """A model with its optimiser.

    Parameters
    ----------
    model : nn.Module
        Keeps the decoder contract.
    objective : Objective
        Gives the loss of a batch.
    settings : config.Optimizer
    processes : Processes, optional
        Those that share the rows of each batch; this one alone where it is absent.

    Notes
    -----
    The gradient is that of the mean over the labels of the whole step, scaled down to `clip_norm` where its norm is
    larger. If the norm is not finite, the optimiser is told so by a flag on the device: weights, moments and step
    counts stay bit-identical, and the host need not wait.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective[Any],
        settings: config.Optimizer,
        processes: Processes | None = None,
    ) -> None:
        self.model = model
        self._processes = processes or Processes()
        self.objective = objective
        self._contract: SequenceModel = model  # type: ignore[assignment]
        self._settings = settings
        self._named = dict(model.named_parameters())
        self._optimizer = AdamW(self._named, settings)

    def launch(self, batches: Sequence[MicroBatch], rate_factor: float, *, step: int) -> Launched:
        """Take one step over some micro-batches, without waiting for it.

        Parameters
        ----------
        batches : sequence of MicroBatch
            At least one of them has a label.
        rate_factor : float
            Learning rate of this step over the base rate.
        step : int
            Counted from 1.
        """
        if not self.model.training:
            self.model.train()
        for parameter in self._named.values():
            parameter.grad = None
        num_labels = sum(batch.num_labels for batch in batches)
        parts = [self._accumulate(batch, num_labels, step) for batch in self._own(batches) if batch.num_labels]
        loss = torch.stack(parts).sum() if parts else torch.zeros((), device=next(self.model.parameters()).device)
        self._add_over_processes(loss)
        return self._apply(loss, rate_factor)

    def learning_rate(self, rate_factor: float) -> float:
        """Of a step with this factor."""
        return self._settings.learning_rate * rate_factor

    def _accumulate(self, batch: MicroBatch, num_labels: int, step: int) -> Tensor:
        """Add the gradient of a micro-batch's share of the mean loss; the share itself."""
        loss = self.objective.loss_sum(self._contract, batch, step=step) / num_labels
        loss.backward()
        return loss.detach()

    def _own(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """Of each batch the rows of this process."""
        if self._processes.size == 1:
            return batches
        return [batch.part(self._processes.rank, self._processes.size) for batch in batches]

    def _add_over_processes(self, loss: Tensor) -> None:
        """Sum the loss and all gradients; one that no process has stays absent, and one that some lack counts as 0."""
        if self._processes.size == 1:
            return
        named = self._named.values()
        is_there = self._processes.largest(*(parameter.grad is not None for parameter in named))
        used = [parameter for parameter, is_used in zip(named, is_there, strict=True) if is_used]
        for parameter in used:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        self._processes.add([loss, *(parameter.grad for parameter in used if parameter.grad is not None)])

    def _apply(self, loss: Tensor, rate_factor: float) -> Launched:
        gradients = {name: parameter.grad for name, parameter in self._named.items() if parameter.grad is not None}
        norms = torch.stack(torch._foreach_norm([*gradients.values()]))  # (P,)
        total = torch.linalg.vector_norm(norms)
        divisor = (total / self._settings.clip_norm).clamp(min=1.0)
        is_broken = (~torch.isfinite(total)).to(total.dtype)
        self._optimizer.step(gradients, self.learning_rate(rate_factor), divisor=divisor, skip=is_broken)
        return Launched(list(gradients), torch.cat([torch.stack([loss, total]), norms]))

    def weights(self) -> dict[str, NDArray[Any]]:
        """Copy of the weights, on the host."""
        return {name: to_host(parameter) for name, parameter in self._named.items()}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Put weights in, in place."""
        for name, parameter in self._named.items():
            parameter.copy_(torch.from_numpy(weights[name]))

    def moments(self) -> dict[str, NDArray[Any]]:
        """Copy of the optimiser's state, on the host."""
        return self._optimizer.state()

    def load_moments(self, moments: Mapping[str, NDArray[Any]]) -> None:
        """Put an optimiser's state back."""
        self._optimizer.load_state(moments)


def _is_finite(number: float) -> bool:
    return abs(number) < float("inf")
