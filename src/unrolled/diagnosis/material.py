"""What there is to look at in a run: its settings, its log, its model, and the data it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from unrolled import models
from unrolled.config import Config, Data, Text
from unrolled.diagnosis.batch import Batch
from unrolled.errors import ConfigError, DataError
from unrolled.parameters import Sizes, inventory
from unrolled.runs import DataDigest, Run, check_tensors
from unrolled.text import Codec, Examples, Pairs, collate, read_pairs
from unrolled.text.tasks import draw_pairs, fixed_pairs

__all__ = ["Material", "open_material", "sample"]

DRAWN = 2000
"""Pairs of an endless task that are looked at."""


@dataclass(frozen=True)
class Material:
    """A run, and what of it can be looked at.

    Attributes
    ----------
    config : Config
    codec : Codec
    events : list of dict
        The log.
    model : nn.Module or None
        With the weights to predict with, or those of the newest saved state.
    train, dev : Pairs or None
        Training pairs without those held out; what was held out, or the dev file.
    missing : dict of str to str
        Why a part is none, by its name.
    """

    config: Config
    codec: Codec
    events: list[dict[str, Any]]
    model: nn.Module | None = None
    train: Pairs | None = None
    dev: Pairs | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


def open_material(path: str | Path, data: str | Path | None = None) -> Material:
    """Open a run folder and the data it was trained on, as far as they are there.

    Parameters
    ----------
    path : path
        The run.
    data : path, optional
        Pairs to look at in place of the training file.

    Raises
    ------
    CheckpointError
        If the folder is no run, or damaged.
    DataError
        If `data` cannot be used.
    """
    run = Run.open(path)
    if not isinstance(run.config.data, Data):
        kind = "a language model" if isinstance(run.config.data, Text) else "a model of vectors"
        raise ConfigError(f"{run.path} is {kind}; so far the doctor looks at runs on pairs")
    codec = Codec.from_json(run.vocabulary())
    material = Material(run.config, codec, run.events())
    missing: dict[str, str] = {}
    model = _model(run, codec)
    if model is None:
        missing["model"] = "no weights were saved yet"
    digest = run.data()
    train, dev = _pairs(digest, codec.data, data, missing, seed=run.config.training.seed)
    return replace(material, model=model, train=train, dev=dev, missing=missing)


def _model(run: Run, codec: Codec) -> nn.Module | None:
    sizes = Sizes(len(codec.source), codec.source.num_features, len(codec.target))
    shapes = {parameter.name: parameter.shape for parameter in inventory(run.config.model, sizes)}
    if run.has_weights:
        weights = run.weights(shapes)
    elif run.states.steps():
        state = run.states.load()
        weights = state.arrays[f"weights-{state.step}"]
        check_tensors(weights, shapes, where=run.path / f"state of step {state.step}")
    else:
        return None
    return models.build(run.config.model, sizes, weights).eval()


def _pairs(
    digest: DataDigest, settings: Data, data: str | Path | None, missing: dict[str, str], *, seed: int
) -> tuple[Pairs | None, Pairs | None]:
    if data is not None:
        return read_pairs(data, settings), None
    if settings.task is not None:
        drawn = draw_pairs(settings.task, np.arange(DRAWN), seed=seed)
        return drawn, fixed_pairs(settings.task, "dev")
    train = dev = None
    try:
        digest.train.check()
        train = read_pairs(digest.train.files, settings)
        is_held_out = np.isin(train.lines, digest.dev_lines)
        train, dev = train.take(np.flatnonzero(~is_held_out)), train.take(np.flatnonzero(is_held_out))
    except DataError as error:
        missing["train"] = str(error)
    if digest.dev is not None:
        try:
            digest.dev.check()
            dev = read_pairs(digest.dev.files, settings)
        except DataError as error:
            dev, missing["dev"] = None, str(error)
    return train, dev if dev is not None and len(dev) else None


def sample(codec: Codec, pairs: Pairs, count: int, *, longest: int, seed: int = 0) -> Batch:
    """A batch of pairs drawn at random from those of at most `longest` symbols a side, or the shortest if none are.

    Parameters
    ----------
    codec : Codec
    pairs : Pairs
        At least one, with targets.
    count, longest, seed : int
    """
    drawn = np.random.default_rng(seed).permutation(len(pairs))[: 50 * count]
    some = pairs.take(drawn)
    examples = Examples(
        codec.encode_sources(some.sources, some.features), codec.encode_targets(some.targets or []), drawn
    )
    chosen = _short(np.maximum(examples.source.lengths, examples.target.lengths), count, longest)
    batch = Batch.of(collate(examples, chosen))
    return replace(batch, lines=tuple(some.lines[chosen].tolist()))


def _short(lengths: NDArray[np.integer[Any]], count: int, longest: int) -> NDArray[np.int64]:
    """The first `count` that are short enough, filled up with the shortest of the others."""
    order = np.argsort(np.maximum(lengths, longest), kind="stable")
    return order[:count].astype(np.int64)
