"""What a run is trained on, whatever its kind: pairs, running text, or sequences of vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unrolled.config import Config, Data, FrameData, Frames, Text, Training, longest_sequence
from unrolled.decoding import Context
from unrolled.errors import ConfigError
from unrolled.inference.engines import AnyCodec
from unrolled.runs import DataDigest, FileDigest
from unrolled.text import (
    Codec,
    DataFile,
    Prepared,
    PreparedFrames,
    PreparedText,
    TextCodec,
    collate,
    prepare,
    prepare_frames,
    prepare_text,
)
from unrolled.text.tasks import is_task
from unrolled.training.endless import Endless
from unrolled.training.epochs import Epochs, Steps
from unrolled.training.evaluation import Dev, DevSet
from unrolled.training.frames import FrameDev, FrameObjective, held_out
from unrolled.training.objective import Objective, PairObjective
from unrolled.training.sampled_softmax import SampledSoftmax
from unrolled.training.text import TextDev, TextObjective, TextSteps, is_streamed
from unrolled.training.watch import Watch, source_effect

__all__ = ["TOKENS", "Material", "gather"]

TOKENS = ".tokens"
"""Folder beside the runs in which the ids of texts are stored."""

WATCHED = 64
"""Examples whose sources are exchanged to see whether they matter."""


@dataclass(frozen=True)
class Material:
    """Data that is ready to train on.

    Parameters
    ----------
    codec : Codec, TextCodec or FrameCodec
    digest : DataDigest
        What the run remembers of the files.
    report : tuple of str
        What a person should see of them.
    steps : Steps
        Micro-batches of each step.
    objective, dev, watch : callable
        Make, for the device that the model lies on, the loss of a batch, the held-out data, if there is any, and the
        watch over a model, if there is one.
    lines : int array (N,), optional
        Line of the training file of each row of the data.
    """

    codec: AnyCodec
    digest: DataDigest
    report: tuple[str, ...]
    steps: Steps
    objective: Callable[[torch.device], Objective[Any]]
    dev: Callable[[torch.device], Dev | None]
    watch: Callable[[nn.Module, torch.device], Watch] | None = None
    lines: NDArray[Any] | None = None


def gather(
    train_path: DataFile, dev: DataFile | None, config: Config, *, folder: Path, codec: AnyCodec | None = None
) -> Material:
    """Read, check, split and encode the data that the settings describe.

    Parameters
    ----------
    train_path, dev : path, or two
        Files of pairs, a file or folder of text, a file of music, or a task.
    config : Config
    folder : Path
        Where the ids of texts are stored.
    codec : Codec or TextCodec, optional
        Of a model that is trained further.
    """
    if isinstance(config.data, FrameData):
        return _of_frames(prepare_frames(train_path, dev, config.data), config, config.data)
    if isinstance(config.data, Text):
        assert codec is None or isinstance(codec, TextCodec)
        if isinstance(train_path, tuple) or isinstance(dev, tuple):
            raise ConfigError("running text is one file or a folder of files, got two files; put them into a folder")
        return _of_text(prepare_text(train_path, dev, config.data, folder=folder, codec=codec), config, train_path, dev)
    assert codec is None or isinstance(codec, Codec)
    return _of_pairs(prepare(train_path, dev, config.data, seed=config.training.seed, codec=codec), config, config.data)


def _of_pairs(prepared: Prepared, config: Config, data: Data) -> Material:
    def dev(device: torch.device) -> Dev | None:
        if prepared.dev is None:
            return None
        return DevSet(
            prepared.dev,
            config.training,
            vocabulary_size=len(prepared.codec.target),
            device=device,
            max_length=longest_sequence(config.model.decoder),
        )

    def watch(model: nn.Module, device: torch.device) -> Watch:
        rows = np.arange(min(WATCHED, len(prepared.train)))
        return Watch(
            num_symbols=len(prepared.codec.target),
            warmup_steps=config.training.schedule.warmup_steps,
            effect=lambda: source_effect(model, collate(prepared.train, rows), device=device),
        )

    return Material(
        codec=prepared.codec,
        digest=_digest(prepared),
        report=tuple(prepared.report.lines()),
        steps=_steps(prepared, config, data),
        objective=lambda device: PairObjective(config.training, device=device),
        dev=dev,
        watch=watch,
        lines=None if data.task is not None else prepared.train_pairs.lines,
    )


def _steps(prepared: Prepared, config: Config, data: Data) -> Steps:
    if data.task is not None:
        return Endless.pairs(data.task, prepared.codec, config.training, first=prepared.train)
    return Epochs(prepared.train, config.training)


def _digest(prepared: Prepared) -> DataDigest:
    def of_file(values: Mapping[str, Any]) -> FileDigest:
        path, *target = (file if is_task(file) else str(Path(file).resolve()) for file in values["files"])
        return FileDigest(path, values["sha256"], values["num_pairs"], *target)

    digest = prepared.digest
    return DataDigest(
        train=of_file(digest["train"]),
        dev=None if digest["dev"] is None else of_file(digest["dev"]),
        dev_lines=tuple(digest["dev_lines"] or ()),
        longest_source=min(prepared.report.train.source.longest, prepared.report.train.source.limit),
    )


def _of_text(prepared: PreparedText, config: Config, train_path: str | Path, dev_path: str | Path | None) -> Material:
    context, codec = Context.of(config), prepared.codec
    valid = None if prepared.valid is None else codec.begun(prepared.valid)
    num_valid = 0 if prepared.valid is None else len(prepared.valid)
    sampled = SampledSoftmax.of_text(prepared.train, config.training, num_symbols=len(codec.vocabulary))

    def dev(device: torch.device) -> Dev | None:
        if valid is None or len(valid) < 2:
            return None
        return TextDev(
            valid,
            context=context,
            num_characters=prepared.report.valid.num_characters,
            vocabulary_size=len(codec.vocabulary),
            device=device,
        )

    return Material(
        codec=codec,
        digest=DataDigest(
            train=FileDigest(str(Path(train_path).resolve()), prepared.train_sha256, len(prepared.train)),
            dev=None
            if dev_path is None
            else FileDigest(str(Path(dev_path).resolve()), prepared.valid_sha256, num_valid),
        ),
        report=tuple(prepared.report.lines()),
        steps=TextSteps(prepared.train, config),
        objective=lambda device: TextObjective(
            config.training, device=device, is_carried=is_streamed(config), sampled=sampled
        ),
        dev=dev,
        watch=lambda *_: Watch(num_symbols=len(codec.vocabulary), warmup_steps=config.training.schedule.warmup_steps),
    )


def _of_frames(prepared: PreparedFrames, config: Config, data: FrameData) -> Material:
    assert isinstance(config.model, Frames)
    head, training = config.model.head, config.training
    name = prepared.file if is_task(prepared.file) else str(Path(prepared.file).resolve())
    return Material(
        codec=prepared.codec,
        digest=DataDigest(FileDigest(name, prepared.sha256, prepared.num_sequences), None),
        report=prepared.report,
        steps=_frame_steps(prepared, data, training),
        objective=lambda device: FrameObjective(head, training, device=device),
        dev=lambda device: FrameDev(held_out(prepared.valid, data.task), head, device=device),
    )


def _frame_steps(prepared: PreparedFrames, data: FrameData, training: Training) -> Steps:
    if data.task is not None:
        return Endless.vectors(data.task, training)
    assert prepared.train is not None
    return Epochs(prepared.train, training)
