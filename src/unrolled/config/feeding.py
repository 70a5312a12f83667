"""What the decoder is fed while it trains: the true symbols, its own, or a mixture of both."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unrolled.config.base import Settings

__all__ = ["Feeding", "FreeRunning", "ScheduledSampling", "TeacherForcing"]

Draw = Literal["argmax", "sample"]


class TeacherForcing(Settings):
    """The true symbol before, always."""

    type: Literal["teacher_forcing"] = "teacher_forcing"


class FreeRunning(Settings):
    """The model's own symbol before, always; of the true prefix it sees nothing."""

    type: Literal["free_running"] = "free_running"
    draw: Draw = "argmax"
    """Its most probable symbol, or one drawn from its distribution."""


class ScheduledSampling(Settings):
    """The true symbol with a probability that falls from step to step, else the model's own (Bengio et al. 2015)."""

    type: Literal["scheduled_sampling"] = "scheduled_sampling"
    decay: Literal["linear", "exponential", "inverse_sigmoid"] = "linear"
    """Probability of the truth after i steps: 1 - rate · i, rate^i, or σ(ln rate - i / rate); never below `floor`."""
    rate: Annotated[float, Field(gt=0.0)] = 1e-4
    """c of the linear decay; k of the exponential one, below 1; k of the inverse sigmoid, at least 1, whose middle is
    at step k ln k."""
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    draw: Draw = "sample"
    """The model's most probable symbol, or one drawn from its distribution."""

    @model_validator(mode="after")
    def _rate_fits_the_decay(self) -> Self:
        if self.decay == "exponential" and self.rate >= 1.0:
            raise ValueError(f"decay=exponential needs a rate below 1, got {self.rate:g}")
        if self.decay == "inverse_sigmoid" and self.rate < 1.0:
            raise ValueError(f"decay=inverse_sigmoid needs a rate of at least 1, got {self.rate:g}")
        return self


Feeding = Annotated[TeacherForcing | FreeRunning | ScheduledSampling, Field(discriminator="type")]
