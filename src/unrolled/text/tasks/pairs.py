"""Tasks as pairs of texts: endless for training, fixed for dev and test."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from unrolled import config
from unrolled.errors import DataError
from unrolled.text.chance import uniforms
from unrolled.text.normal_form import NormalForm, normalise
from unrolled.text.pairs import Pairs
from unrolled.text.tasks.blind import Blind
from unrolled.text.tasks.numbers import Addition, Dates
from unrolled.text.tasks.strings import Strings
from unrolled.text.vocabulary import Vocabulary

__all__ = ["PREFIX", "draw_pairs", "fixed_pairs", "is_task", "named_task", "task_of", "task_type", "vocabularies"]

PREFIX = "task:"
"""Where a file is asked for, `task:` and a name stand for a task."""
_TRAIN, _DEV, _TEST = range(3)


class TextTask(Protocol):
    """A rule for drawing pairs of texts."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers that an example needs."""

    @property
    def source_symbols(self) -> str:
        """Every character of the sources."""

    @property
    def target_symbols(self) -> str:
        """Every character of the targets."""

    def texts(self, uniforms: NDArray[np.float64]) -> tuple[list[str], list[str]]:
        """Sources and targets from uniform numbers (N, num_draws)."""

    def blind(self) -> Blind:
        """The best without reading the source."""


def is_task(file: object) -> bool:
    """Whether this stands for a task and not for a file."""
    return str(file).startswith(PREFIX)


def task_type(file: object) -> str:
    """What `type` the settings of `task:NAME` have."""
    return str(file).removeprefix(PREFIX).replace("-", "_")


def named_task(file: str, settings: config.PairTask | None) -> config.PairTask:
    """The task that `task:NAME` stands for: with these settings if they are of that task, else with its defaults.

    Raises
    ------
    DataError
        If there is no task of that name whose examples are pairs.
    """
    name = task_type(file)
    if settings is not None and settings.type == name:
        return settings
    known = {task.model_fields["type"].default: task for task in get_args(config.PairTask)}
    if name not in known:
        raise DataError(f"no task of pairs has this name; expected one of {', '.join(known)}", file=file)
    task: config.PairTask = known[name]()
    return task


def task_of(settings: config.PairTask) -> TextTask:
    """The task with these settings."""
    if isinstance(settings, config.AdditionTask):
        return Addition(settings)
    return Dates(settings) if isinstance(settings, config.DatesTask) else Strings(settings)


def vocabularies(settings: config.PairTask, form: NormalForm) -> tuple[Vocabulary, Vocabulary]:
    """All symbols of the sources and of the targets in a normal form, whether or not they have been drawn yet."""
    task = task_of(settings)
    source, target = (
        Vocabulary(tuple(sorted(set(normalise(symbols, form)))))
        for symbols in (task.source_symbols, task.target_symbols)
    )
    return source, target


def draw_pairs(settings: config.PairTask, rows: NDArray[Any], *, seed: int) -> Pairs:
    """Training pairs: the ones with these indices in the endless sequence of a seed."""
    return _drawn(settings, rows, _TRAIN, seed)


def fixed_pairs(settings: config.PairTask, part: Literal["dev", "test"]) -> Pairs:
    """The dev or the test pairs of a task; no seed changes them."""
    return _drawn(settings, np.arange(settings.dev_size), _DEV if part == "dev" else _TEST, 0)


def _drawn(settings: config.PairTask, rows: NDArray[Any], part: int, seed: int) -> Pairs:
    task = task_of(settings)
    sources, targets = task.texts(uniforms(part, seed, rows=rows, count=task.num_draws))
    content = "\n".join([*sources, *targets])
    return Pairs(
        file=PREFIX + settings.type,
        lines=np.asarray(rows) + 1,
        sources=sources,
        targets=targets,
        sha256=hashlib.sha256(content.encode()).hexdigest(),
    )
