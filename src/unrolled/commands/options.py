"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["Engine", "EngineOption"]


class Engine(StrEnum):
    """What computes."""

    AUTO = "auto"
    TORCH = "torch"
    NUMPY = "numpy"


EngineOption = Annotated[
    Engine, typer.Option("--engine", help="What computes; auto: PyTorch where it is installed, else NumPy.")
]
