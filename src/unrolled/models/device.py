"""Where PyTorch computes."""

from __future__ import annotations

from typing import Literal

import torch

from unrolled.errors import ConfigError

__all__ = ["DeviceName", "choose_device", "longest_float"]

DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def choose_device(name: DeviceName) -> torch.device:
    """The device of that name; `auto` takes a GPU where there is one.

    Raises
    ------
    ConfigError
        If PyTorch sees no such device.
    """
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, is_there in found.items() if is_there))
    if not found.get(name, False):
        there = ", ".join(kind for kind, is_there in found.items() if is_there)
        raise ConfigError(f"device {name} is not there; PyTorch sees: {there}")
    return torch.device(name)


def longest_float(device: torch.device) -> torch.dtype:
    """The type of most digits that the device has."""
    return torch.float32 if device.type == "mps" else torch.float64
