"""Which weights a run ends with: the best checkpoint, or the average of the last or best ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unrolled import config

__all__ = ["Candidate", "Selection", "average_weights"]

Weights = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An evaluated step."""

    step: int
    value: float
    """Of the metric that chooses; lower is better."""
    loss: float
    """Decides between equal values: on a small dev set error rates often are."""

    @property
    def rank(self) -> tuple[float, float, int]:
        """Lower is better; of equals the first."""
        return self.value, self.loss, self.step


class Selection:
    """Keeps the weights of evaluated steps that may still be needed, and counts evaluations without a better value.

    Parameters
    ----------
    settings : config.Training
        Its patience and averaging.
    """

    def __init__(self, settings: config.Training) -> None:
        self._settings = settings
        self._candidates: list[Candidate] = []
        self.best: Candidate | None = None
        self.num_without_gain = 0
        self.snapshots: dict[int, Weights] = {}
        """Weights by step: of the best evaluation and of those that an average would take."""

    def add(self, candidate: Candidate, weights: Weights) -> bool:
        """Take in an evaluation; whether it is the best so far.

        One without a finite value is never the best and counts against patience.
        """
        if not (math.isfinite(candidate.value) and math.isfinite(candidate.loss)):
            self.num_without_gain += 1
            return False
        is_best = self.best is None or candidate.rank < self.best.rank
        self.num_without_gain = 0 if is_best else self.num_without_gain + 1
        self.best = candidate if self.best is None or is_best else self.best
        self._candidates = self._kept([*self._candidates, candidate])
        needed = {kept.step for kept in [*self._candidates, self.best]}
        snapshots = self.snapshots | {candidate.step: weights}
        self.snapshots = {step: kept for step, kept in snapshots.items() if step in needed}
        return is_best

    @property
    def is_exhausted(self) -> bool:
        """Whether patience has run out."""
        return self._settings.patience is not None and self.num_without_gain >= self._settings.patience

    def best_weights(self) -> Weights | None:
        """Weights of the best evaluation; none before the first."""
        return None if self.best is None else self.snapshots[self.best.step]

    def averaged(self) -> Weights | None:
        """Average that the settings ask for; none where it would be a single checkpoint."""
        if len(self._candidates) < 2:
            return None
        return average_weights([self.snapshots[candidate.step] for candidate in self._candidates])

    def _kept(self, candidates: list[Candidate]) -> list[Candidate]:
        count = self._settings.average_count
        if self._settings.average == "last":
            return candidates[-count:]
        if self._settings.average == "best":
            return sorted(candidates, key=lambda candidate: candidate.rank)[:count]
        return []

    def to_json(self) -> dict[str, Any]:
        """All but the weights."""
        return {
            "candidates": [dataclasses.astuple(candidate) for candidate in self._candidates],
            "best": None if self.best is None else dataclasses.astuple(self.best),
            "num_without_gain": self.num_without_gain,
        }

    @classmethod
    def from_json(cls, settings: config.Training, values: Mapping[str, Any], snapshots: Mapping[int, Weights]) -> Self:
        """Read back what `to_json` gave, with the weights of `snapshots`."""
        selection = cls(settings)
        selection._candidates = [Candidate(*candidate) for candidate in values["candidates"]]
        selection.best = None if values["best"] is None else Candidate(*values["best"])
        selection.num_without_gain = values["num_without_gain"]
        selection.snapshots = dict(snapshots)
        return selection


def average_weights(checkpoints: Sequence[Weights]) -> Weights:
    """Mean of each weight over some checkpoints, summed in float64 and rounded once to float32."""

    def mean(name: str) -> NDArray[Any]:
        total = np.sum([weights[name] for weights in checkpoints], axis=0, dtype=np.float64)
        return np.asarray(total / len(checkpoints), dtype=np.float32)

    return {name: mean(name) for name in checkpoints[0]}
