"""Where a model is trained, and how batches and random numbers get there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unrolled.text import Batch

__all__ = ["on_device", "random_state", "seeded", "set_random_state", "to_host"]


def on_device(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source, source mask, inputs and labels of a batch, copied without waiting where the device can."""
    tensors = tuple(map(torch.from_numpy, (batch.source, batch.source_mask, batch.inputs, batch.labels)))
    if device.type == "cpu":
        return tensors  # type: ignore[return-value]
    if device.type == "cuda":
        tensors = tuple(tensor.pin_memory() for tensor in tensors)
    return tuple(tensor.to(device, non_blocking=True) for tensor in tensors)  # type: ignore[return-value]


def to_host(tensor: Tensor) -> NDArray[Any]:
    """Copy of a tensor's values as an array."""
    array: NDArray[Any] = tensor.detach().to("cpu", copy=True).numpy()
    return array


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from this seed inside the block; the generators before are restored after it."""
    before = random_state(device)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(before, device)


def random_state(device: torch.device) -> dict[str, NDArray[np.uint8]]:
    """States of the generators that training draws from: the host's, and the device's own."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return {name: state.numpy().copy() for name, state in states.items()}


def set_random_state(states: dict[str, NDArray[Any]], device: torch.device) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(torch.from_numpy(states["cpu"].copy()))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(torch.from_numpy(states["cuda"].copy()), device)
    if device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(torch.from_numpy(states["mps"].copy()))
