"""The two ways in which studies train: the package's own training on a task, and a short loop for plain layers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unrolled
from unrolled.config import (
    Config,
    Data,
    Decoding,
    Model,
    Optimizer,
    PairTask,
    Schedule,
    TeacherForcing,
    Training,
)
from unrolled.config.feeding import Feeding
from unrolled.inference import Predictor, load_predictor
from unrolled.runs import Run

__all__ = ["WINDOW", "Learnt", "fit", "learn"]

WINDOW = 20
"""Steps whose losses are averaged."""


@dataclass(frozen=True)
class Learnt:
    """A model that was trained on a task, and its log."""

    predictor: Predictor
    events: list[dict[str, Any]]

    def dev_losses(self) -> list[tuple[int, float]]:
        """Step and loss (nats a label) of each dev evaluation."""
        return [(one["step"], one["loss"]) for one in self.events if one["event"] == "Evaluated"]

    def steps_to(self, loss: float) -> float:
        """First evaluated step with a dev loss so low; infinity if there is none."""
        return min((float(step) for step, value in self.dev_losses() if value <= loss), default=float("inf"))


def learn(
    task: PairTask,
    model: Model,
    *,
    steps: int,
    seed: int,
    rate: float = 2e-3,
    batch_size: int = 64,
    evaluate_every: int | None = None,
    feeding: Feeding | None = None,
) -> Learnt:
    """Train a model on an endless task, with everything else alike in all studies."""
    training = Training(
        max_steps=steps,
        max_batch_size=batch_size,
        batch_tokens=1 << 14,
        label_smoothing=0.0,
        optimizer=Optimizer(learning_rate=rate),
        schedule=Schedule(warmup_steps=min(100, steps // 4)),
        evaluate_every=evaluate_every or steps,
        feeding=feeding or TeacherForcing(),
        seed=seed,
    )
    config = Config(data=Data(task=task), model=model, training=training, decoding=Decoding(beam=1))
    with tempfile.TemporaryDirectory() as folder:
        unrolled.train(f"task:{task.type}", config=config, out=Path(folder) / "run")
        return Learnt(load_predictor(Path(folder) / "run"), Run.open(Path(folder) / "run").events())


def fit(
    model: nn.Module,
    draw: Callable[[torch.Generator], tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
    seed: int,
    rate: float = 3e-3,
) -> list[float]:
    """Train plain layers with Adam on batches that are drawn anew each step; the loss, as means of 20 steps each."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    losses: list[float] = []
    for _ in range(steps):
        inputs, labels = draw(generator)
        value = loss(model(inputs), labels)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(value.detach()))
    return [float(np.mean(losses[start : start + WINDOW])) for start in range(0, steps, WINDOW)]
