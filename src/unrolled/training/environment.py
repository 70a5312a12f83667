"""What decides the last bits of a training, as far as it can be named."""

from __future__ import annotations

import platform

import numpy as np
import torch

from unrolled.models.matrix_products import MatrixMode
from unrolled.runs import Environment
from unrolled.version import __version__

__all__ = ["current_environment", "differences"]


def current_environment(device: torch.device, matrix_mode: MatrixMode, *, processes: int = 1) -> Environment:
    """The environment of this process."""
    return Environment(
        versions={
            "unrolled": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
        },
        machine=f"{platform.system()} {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        device=str(device),
        threads=torch.get_num_threads(),
        processes=processes,
        matrix_mode=matrix_mode,
    )


def differences(before: Environment, now: Environment) -> list[str]:
    """What changed between two sessions of a run, each as `name before -> now`."""
    names = ("machine", "device", "threads", "processes", "matrix_mode")
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in names]
    pairs += [(name, before.versions.get(name), version) for name, version in now.versions.items()]
    return [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
