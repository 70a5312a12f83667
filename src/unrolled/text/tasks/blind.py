"""What a task gives to a model that does not read its input: the mark that a result must be seen beside."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Blind"]


class Blind(NamedTuple):
    """The best that can be reached from the distribution of the answers alone."""

    error_rate: float
    """Share of wrong sources when the most probable answer is always given: 1 - max P(y)."""
    loss: float
    """Nats a label, end symbols counted, of the true distribution: the entropy of y over its mean number of labels."""

    def __str__(self) -> str:
        return f"{100 * self.error_rate:.2f} % wrong sources, loss {self.loss:.4f} nats a label"
