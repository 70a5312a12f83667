"""What there is to look at in a run: its settings, its log, its model, and the data it names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from unrolled import models
from unrolled.config import Config, Data, FrameData, Frames, Text
from unrolled.diagnosis.adapter import Adapter
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.findings import Finding
from unrolled.diagnosis.held_out import check_left_out, check_unknown_symbols, frequency_entropy
from unrolled.diagnosis.overlap import check_overlap
from unrolled.diagnosis.vectors import constant_loss, head_loss, vector_batch
from unrolled.errors import DataError
from unrolled.inference.engines import AnyCodec, sizes_of
from unrolled.parameters import inventory
from unrolled.runs import DataDigest, Run, check_tensors
from unrolled.text import (
    Codec,
    Corpus,
    Examples,
    FrameCodec,
    Pairs,
    Pieces,
    TextCodec,
    collate,
    read_pairs,
    read_pieces,
)
from unrolled.text.streams import text_batch
from unrolled.text.tasks import PREFIX, draw_pairs, draw_vectors, fixed_pairs

__all__ = ["FrameMaterial", "Material", "PairMaterial", "TextMaterial", "open_material"]

DRAWN = 2000
"""Pairs of an endless task that are looked at."""
SAMPLED = 20_000
"""Pairs of the training file that are measured for their lengths."""
READ = 200_000
"""Characters at the start of a text that are looked at."""
MANY, LONG = 128, 40
"""Examples whose symbols are looked at, and how long they may be."""

Check = Callable[[], Sequence[Finding]]


@dataclass(frozen=True, kw_only=True)
class Material(ABC):
    """A run, and what of it can be looked at.

    Attributes
    ----------
    config : Config
    events : list of dict
        The log.
    model : nn.Module or None
        With the weights to predict with, or those of the newest saved state.
    missing : dict of str to str
        Why a part is not there, by its name.
    """

    config: Config
    events: list[dict[str, Any]]
    model: nn.Module | None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    @abstractmethod
    def num_symbols(self) -> int | None:
        """V, the symbols that the model can write; none where it writes numbers."""

    @property
    def adapter(self) -> Adapter:
        """How the model is called, and its loss if that is not cross entropy."""
        return Adapter()

    def blind_loss(self, train: Batch, batch: Batch) -> float:
        """Loss a label of the best answer that is always the same, learnt from a training batch."""
        return frequency_entropy(train, batch)

    @abstractmethod
    def sample(self, count: int, *, longest: int, is_held_out: bool = False) -> Batch | None:
        """A batch of training (or held-out) examples of at most so many symbols; none where there are none."""

    @abstractmethod
    def data_checks(self) -> dict[str, Check]:
        """Checks of the data alone, by name."""


@dataclass(frozen=True, kw_only=True)
class PairMaterial(Material):
    """Of a run on pairs: training pairs without those held out, and what was held out or the dev file."""

    codec: Codec
    train: Pairs | None
    dev: Pairs | None

    @property
    def num_symbols(self) -> int:
        """Target symbols."""
        return len(self.codec.target)

    def sample(self, count: int, *, longest: int, is_held_out: bool = False) -> Batch | None:
        """Pairs drawn at random from those of at most `longest` symbols a side, or the shortest if none are."""
        pairs = self.dev if is_held_out else self.train
        return None if pairs is None else _batch_of(self.codec, pairs, count, longest)

    def data_checks(self) -> dict[str, Check]:
        """Unknown symbols, lengths, and pairs in both parts."""
        codec, train, dev = self.codec, self.train, self.dev
        if train is None:
            return {}
        some = train.take(np.random.default_rng(0).permutation(len(train))[:SAMPLED])
        seen = _batch_of(codec, some, MANY, LONG)
        checks: dict[str, Check] = {
            "check_unknown_symbols": lambda: check_unknown_symbols(seen, name=some.file),
            "check_left_out": lambda: check_left_out(codec, some),
        }
        if dev is not None and codec.data.task is None:  # an endless task draws a short pair again and again
            checks["check_overlap"] = lambda: check_overlap(train, dev)
        return checks


@dataclass(frozen=True, kw_only=True)
class TextMaterial(Material):
    """Of a language model's run: ids of the beginning of the training text, and of the valid file if there is one."""

    codec: TextCodec
    train: NDArray[Any] | None
    dev: NDArray[Any] | None

    @property
    def num_symbols(self) -> int:
        """Symbols of the vocabulary."""
        return len(self.codec.vocabulary)

    def sample(self, count: int, *, longest: int, is_held_out: bool = False) -> Batch | None:
        """Windows of `longest` symbols, spread evenly."""
        tokens = self.dev if is_held_out else self.train
        if tokens is None or len(tokens) < 2:
            return None
        length = min(longest, len(tokens) - 1)
        starts = np.unique(np.linspace(0, len(tokens) - length - 1, count).astype(np.int64))
        return Batch.of(text_batch(tokens, starts, length))

    def data_checks(self) -> dict[str, Check]:
        """Unknown symbols."""
        seen = self.sample(MANY, longest=LONG)
        return {} if seen is None else {"check_unknown_symbols": lambda: check_unknown_symbols(seen, name="the text")}


@dataclass(frozen=True, kw_only=True)
class FrameMaterial(Material):
    """Of a run on vectors: pieces of music, or a task that draws them."""

    codec: FrameCodec
    train: Pieces | None
    dev: Pieces | None

    @property
    def head(self) -> str:
        """What the outputs mean."""
        assert isinstance(self.config.model, Frames)
        return self.config.model.head

    @property
    def num_symbols(self) -> int | None:
        """Classes, if the outputs are classes."""
        return self.codec.num_outputs if self.head == "categorical" else None

    @property
    def adapter(self) -> Adapter:
        """With the loss of the head."""
        return Adapter(loss=head_loss(self.head))

    def blind_loss(self, train: Batch, batch: Batch) -> float:
        """Of base rates, of the mean, or of the frequencies of classes."""
        return constant_loss(self.head, train, batch)

    def sample(self, count: int, *, longest: int, is_held_out: bool = False) -> Batch | None:
        """Beginnings of pieces drawn at random, or whole sequences of a task: their labels may stand at the end."""
        data = self.config.data
        assert isinstance(data, FrameData)
        if data.task is not None:
            rows, seed = np.arange(count), self.config.training.seed
            return vector_batch(draw_vectors(data.task, rows, seed=seed, part="dev" if is_held_out else "train"))
        pieces = self.dev if is_held_out else self.train
        if pieces is None:
            return None
        drawn = np.random.default_rng(0).permutation(len(pieces))[:count]
        return vector_batch(pieces.batch(drawn)).columns(0, longest)

    def data_checks(self) -> dict[str, Check]:
        """None: files of music are checked as they are read."""
        return {}


def open_material(path: str | Path, data: str | Path | None = None) -> Material:
    """Open a run folder and the data it was trained on, as far as they are there.

    Parameters
    ----------
    path : path
        The run.
    data : path, optional
        Pairs or text to look at in place of what was trained on.

    Raises
    ------
    CheckpointError
        If the folder is no run, or damaged.
    DataError
        If `data` cannot be used.
    """
    run = Run.open(path)
    if isinstance(run.config.data, Data):
        return _of_pairs(run, data)
    if isinstance(run.config.data, Text):
        return _of_text(run, data, run.config.data)
    return _of_vectors(run, data, run.config.data)


def _of_pairs(run: Run, data: str | Path | None) -> PairMaterial:
    codec, missing = Codec.from_json(run.vocabulary()), dict[str, str]()
    train, dev = _pairs(run.data(), codec.data, data, missing, seed=run.config.training.seed)
    model = _model(run, codec, missing)
    return PairMaterial(
        config=run.config, events=run.events(), model=model, missing=missing, codec=codec, train=train, dev=dev
    )


def _of_text(run: Run, data: str | Path | None, settings: Text) -> TextMaterial:
    codec, missing, digest = TextCodec.from_json(run.vocabulary()), dict[str, str](), run.data()

    def beginning(path: str | Path) -> NDArray[Any]:
        text = "".join(Corpus(path, settings).blocks(0, READ))
        return codec.framed(codec.symbols(codec.documents(text))).values

    train = dev = None
    try:
        train = beginning(digest.train.path if data is None else data)
        dev = None if digest.dev is None or data is not None else beginning(digest.dev.path)
    except DataError as error:
        if data is not None:
            raise
        missing["train"] = str(error)
    model = _model(run, codec, missing)
    return TextMaterial(
        config=run.config, events=run.events(), model=model, missing=missing, codec=codec, train=train, dev=dev
    )


def _of_vectors(run: Run, data: str | Path | None, settings: FrameData) -> FrameMaterial:
    codec, missing = FrameCodec.from_json(run.vocabulary()), dict[str, str]()
    train = dev = None
    if settings.task is None:
        try:
            if data is None:
                run.data().train.check()
            file = run.data().train.path if data is None else data
            train, dev = (read_pieces(file, part, num_keys=settings.num_keys) for part in ("train", "valid"))
        except DataError as error:
            if data is not None:
                raise
            missing["train"] = str(error)
    elif data is not None:
        raise DataError(f"{run.path} was trained on {PREFIX}{settings.task.type}, which needs no file", file=str(data))
    model = _model(run, codec, missing)
    return FrameMaterial(
        config=run.config, events=run.events(), model=model, missing=missing, codec=codec, train=train, dev=dev
    )


def _model(run: Run, codec: AnyCodec, missing: dict[str, str]) -> nn.Module | None:
    sizes = sizes_of(codec)
    shapes = {parameter.name: parameter.shape for parameter in inventory(run.config.model, sizes)}
    if run.has_weights:
        weights = run.weights(shapes)
    elif run.states.steps():
        state = run.states.load()
        weights = state.arrays[f"weights-{state.step}"]
        check_tensors(weights, shapes, where=run.path / f"state of step {state.step}")
    else:
        missing["model"] = "no weights were saved yet"
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


def _batch_of(codec: Codec, pairs: Pairs, count: int, longest: int) -> Batch:
    drawn = np.random.default_rng(0).permutation(len(pairs))[: 50 * count]
    some = pairs.take(drawn)
    examples = Examples(
        codec.encode_sources(some.sources, some.features), codec.encode_targets(some.targets or []), drawn
    )
    lengths = np.maximum(examples.source.lengths, examples.target.lengths)
    chosen = np.argsort(np.maximum(lengths, longest), kind="stable")[:count]  # the short ones as drawn, then by length
    batch = Batch.of(collate(examples, chosen))
    return replace(batch, lines=tuple(some.lines[chosen].tolist()))
