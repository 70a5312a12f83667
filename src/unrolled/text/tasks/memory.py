"""Tasks of long memory, as sequences of vectors: the adding problem, and copying after a wait."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unrolled import config
from unrolled.text.chance import uniforms
from unrolled.text.frames import FrameBatch, FrameCodec

__all__ = ["Adding", "CopyMemory", "draw_vectors", "fixed_vectors", "vector_task_of"]

Uniforms = NDArray[np.float64]
_PARTS = {"train": 0, "dev": 1, "test": 2}


class Sequences(NamedTuple):
    """Inputs (N, T, F), labels, and which places have one (N, T)."""

    inputs: NDArray[np.float32]
    labels: NDArray[Any]
    counted: NDArray[np.bool_]


class MemoryTask(Protocol):
    """A rule for drawing sequences of vectors."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers that an example needs."""

    @property
    def codec(self) -> FrameCodec:
        """Sizes of inputs and outputs."""

    @property
    def head(self) -> str:
        """Of the model that the labels are for."""

    @property
    def unit(self) -> str:
        """What the loss is counted in."""

    def sequences(self, uniforms: Uniforms) -> Sequences:
        """Examples from uniform numbers (N, num_draws)."""

    def best_loss(self) -> float:
        """The least expected loss, in `unit`, of a model that ignores its inputs."""


class Adding:
    """Numbers from 0 to 1 beside marks; one number is marked in each half, and the last step asks for their sum.

    Parameters
    ----------
    settings : config.AddingTask
    """

    head, unit = "regression", "squared error"
    codec = FrameCodec(num_inputs=2, num_outputs=1)

    def __init__(self, settings: config.AddingTask) -> None:
        self.length = settings.length
        self.num_draws = settings.length + 2

    def sequences(self, uniforms: Uniforms) -> Sequences:
        """Inputs (N, T, 2): number and mark; labels (N, T, 1), of the last step alone."""
        numbers, half = uniforms[:, : self.length], self.length // 2
        first = (uniforms[:, -2] * half).astype(np.int64)
        second = half + (uniforms[:, -1] * (self.length - half)).astype(np.int64)
        rows = np.arange(len(numbers))
        marks = np.zeros_like(numbers)
        marks[rows, first] = marks[rows, second] = 1.0
        labels = np.zeros((*numbers.shape, 1), np.float32)
        labels[:, -1, 0] = numbers[rows, first] + numbers[rows, second]
        counted = np.zeros(numbers.shape, np.bool_)
        counted[:, -1] = True
        return Sequences(np.stack([numbers, marks], axis=-1).astype(np.float32), labels, counted)

    def best_loss(self) -> float:
        """1/6: the variance of the sum of two uniform numbers, for who always says 1."""
        return 1.0 / 6.0


class CopyMemory:
    """Ten of eight symbols, T - 1 blanks, a mark, ten blanks; wanted are T + 10 blanks and then the ten symbols.

    Parameters
    ----------
    settings : config.CopyMemoryTask

    Notes
    -----
    Classes are the blank 0, the symbols 1 to 8 and, of the inputs alone, the mark 9; inputs are one-hot.
    """

    head, unit = "categorical", "nats an output"
    codec = FrameCodec(num_inputs=10, num_outputs=9)
    num_draws = NUM_COPIED = 10
    NUM_SYMBOLS = 8

    def __init__(self, settings: config.CopyMemoryTask) -> None:
        self.lag = settings.lag

    def sequences(self, uniforms: Uniforms) -> Sequences:
        """Inputs (N, T + 20, 10) and labels (N, T + 20), which all count."""
        symbols = 1 + (uniforms * self.NUM_SYMBOLS).astype(np.int64)  # (N, 10)
        ids = np.zeros((len(symbols), self.lag + 2 * self.NUM_COPIED), np.int64)
        labels = np.zeros_like(ids)
        ids[:, : self.NUM_COPIED] = symbols
        ids[:, -self.NUM_COPIED - 1] = self.NUM_SYMBOLS + 1
        labels[:, -self.NUM_COPIED :] = symbols
        return Sequences(np.eye(10, dtype=np.float32)[ids], labels, np.ones(ids.shape, np.bool_))

    def best_loss(self) -> float:
        """10 ln 8 / (T + 20): blanks are certain, and the symbols cannot be known."""
        return self.NUM_COPIED * math.log(self.NUM_SYMBOLS) / (self.lag + 2 * self.NUM_COPIED)


def vector_task_of(settings: config.VectorTask) -> MemoryTask:
    """The task with these settings."""
    return Adding(settings) if isinstance(settings, config.AddingTask) else CopyMemory(settings)


def draw_vectors(
    settings: config.VectorTask, rows: NDArray[np.int64], *, seed: int, part: Literal["train", "dev", "test"] = "train"
) -> FrameBatch:
    """The sequences with these indices in the endless ones of a seed."""
    task = vector_task_of(settings)
    inputs, labels, counted = task.sequences(uniforms(_PARTS[part], seed, rows=rows, count=task.num_draws))
    return FrameBatch(inputs, labels, counted, np.full(len(rows), inputs.shape[1]), rows)


def fixed_vectors(settings: config.VectorTask, rows: NDArray[np.int64], part: Literal["dev", "test"]) -> FrameBatch:
    """Some of the dev or the test sequences of a task; no seed changes them."""
    return draw_vectors(settings, rows, seed=0, part=part)
