"""AdamW in one fused kernel that can be told, on the device, to leave everything as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unrolled import config
from unrolled.training.device import to_host

__all__ = ["AdamW"]


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), on matrices only.

    ::

        m = beta1 m + (1 - beta1) g                 m_hat = m / (1 - beta1^t)
        v = beta2 v + (1 - beta2) g²                v_hat = v / (1 - beta2^t)
        w = w - rate · decay · w - rate · m_hat / (sqrt(v_hat) + epsilon)

    Biases, norms and other vectors do not decay. A parameter without a gradient is left alone, its t too.

    Parameters
    ----------
    parameters : mapping of str to Parameter
    settings : config.Optimizer

    Notes
    -----
    `torch.optim.AdamW` computes the same with the same kernel, but imports PyTorch's compiler to do so, which takes
    seconds at the start of every training.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: config.Optimizer) -> None:
        self._parameters = parameters
        self._settings = settings
        self._first = {name: torch.zeros_like(weight) for name, weight in parameters.items()}
        self._second = {name: torch.zeros_like(weight) for name, weight in parameters.items()}
        self._steps = {name: torch.zeros((), device=weight.device) for name, weight in parameters.items()}

    def step(self, gradients: Mapping[str, Tensor], rate: float, *, divisor: Tensor, skip: Tensor) -> None:
        """Update the parameters that have a gradient.

        Parameters
        ----------
        gradients : mapping of str to Tensor
        rate : float
            Learning rate of this step.
        divisor : Tensor ()
            The gradients are divided by it, in place, as they are read.
        skip : Tensor ()
            1 to leave parameters, moments and step counts bit-identical, else 0; read on the device.
        """
        decay = self._settings.weight_decay
        matrices = {name: gradient for name, gradient in gradients.items() if gradient.ndim >= 2}
        vectors = {name: gradient for name, gradient in gradients.items() if gradient.ndim < 2}
        self._update(matrices, rate, decay=decay, divisor=divisor, skip=skip)
        self._update(vectors, rate, decay=0.0, divisor=divisor, skip=skip)

    @torch.no_grad()
    def _update(
        self, gradients: Mapping[str, Tensor], rate: float, *, decay: float, divisor: Tensor, skip: Tensor
    ) -> None:
        if not gradients:
            return
        if skip.device.type == "mps":  # its kernel heeds neither the divisor nor the flag
            if skip.item():
                return
            torch._foreach_div_(list(gradients.values()), divisor)
        steps = [self._steps[name] for name in gradients]
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            [self._parameters[name] for name in gradients],
            list(gradients.values()),
            [self._first[name] for name in gradients],
            [self._second[name] for name in gradients],
            [],
            steps,
            lr=rate,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            weight_decay=decay,
            eps=self._settings.epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=skip,
        )
        torch._foreach_sub_(steps, [skip] * len(steps))

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy of moments and step counts, on the host; names are `first/encoder.…`, `second/…` and `steps/…`."""
        return {f"{kind}/{name}": to_host(value) for kind, values in self._kinds() for name, value in values.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put back what `state` gave."""
        for kind, values in self._kinds():
            for name, value in values.items():
                value.copy_(torch.from_numpy(state[f"{kind}/{name}"]))

    def _kinds(self) -> tuple[tuple[str, dict[str, Tensor]], ...]:
        return ("first", self._first), ("second", self._second), ("steps", self._steps)
