"""Settings of sequences of vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unrolled.config.base import Positive, Settings
from unrolled.config.tasks import VectorTask

__all__ = ["FrameData"]


class FrameData(Settings):
    """Sequences of vectors: pieces of music from a file, or a task."""

    type: Literal["frames"] = "frames"
    num_keys: Positive = 88
    """Of music: keys are numbers from 0 to one less."""
    task: VectorTask | None = Field(default=None, discriminator="type")
    """Draw sequences instead of reading them; `task:NAME` in place of a file sets its type."""
