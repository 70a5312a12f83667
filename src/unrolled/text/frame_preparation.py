"""From a file of music or a task to everything that training on vectors needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from unrolled.config import FrameData
from unrolled.errors import ConfigError
from unrolled.text.frames import FrameCodec, Pieces, read_pieces
from unrolled.text.pairs import DataFile
from unrolled.text.tasks import PREFIX, is_task, task_type, vector_task_of

__all__ = ["PreparedFrames", "prepare_frames"]


@dataclass(frozen=True)
class PreparedFrames:
    """What training needs of the data.

    Parameters
    ----------
    codec : FrameCodec
    file : str
        Of music, or `task:NAME`.
    train, valid : Pieces or None
        None for a task, whose sequences are drawn when they are needed.
    num_sequences : int
        Of training, or of an epoch of a task.
    sha256 : str
        Of the file's bytes, or of the task's settings.
    report : tuple of str
        What a person should see before training.
    """

    codec: FrameCodec
    file: str
    train: Pieces | None
    valid: Pieces | None
    num_sequences: int
    sha256: str
    report: tuple[str, ...]


def prepare_frames(path: DataFile, dev: DataFile | None, data: FrameData) -> PreparedFrames:
    """Read and report a file of music, whose parts `train` and `valid` are used, or report a task.

    Raises
    ------
    DataError
        If the file cannot be used.
    ConfigError
        If path and `data.task` do not agree, or there are other files: music and tasks have their own dev part.
    """
    if isinstance(path, tuple):
        raise ConfigError("sequences of vectors are one file of music or a task, got two files")
    name = None if data.task is None else PREFIX + data.task.type
    if (PREFIX + task_type(path) if is_task(path) else None) != name:
        raise ConfigError(f"data.task: expected the settings of {path}, got {'none' if name is None else name}")
    if dev is not None:
        raise ConfigError(f"{path} has a dev part of its own; leave out {dev}")
    return _of_music(path, data) if data.task is None else _of_task(data)


def _of_music(path: str | Path, data: FrameData) -> PreparedFrames:
    train, valid = (read_pieces(path, part, num_keys=data.num_keys) for part in ("train", "valid"))
    report = [_described("train", train), _described("valid", valid)]
    codec = FrameCodec(num_inputs=data.num_keys, num_outputs=data.num_keys)
    return PreparedFrames(codec, train.file, train, valid, len(train), train.sha256, tuple(report))


def _described(part: str, pieces: Pieces) -> str:
    sounding = pieces.frames.sum(axis=1)
    return (
        f"{part}: {len(pieces)} pieces, {pieces.num_tokens} steps, longest piece {pieces.lengths.max()}; at most"
        f" {sounding.max()} of {pieces.frames.shape[1]} keys at once, mean {sounding.mean():.2f}"
    )


def _of_task(data: FrameData) -> PreparedFrames:
    assert data.task is not None
    task = vector_task_of(data.task)
    report = (
        f"{PREFIX}{data.task.type}: {data.task.epoch_size} new sequences an epoch, {data.task.dev_size} for valid",
        f"at best without reading the inputs: {task.best_loss():.4f} ({task.unit})",
    )
    digest = hashlib.sha256(data.task.model_dump_json().encode()).hexdigest()
    return PreparedFrames(task.codec, PREFIX + data.task.type, None, None, data.task.epoch_size, digest, report)
