"""From data files to everything that training needs, in one call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unrolled.config import Data, Side
from unrolled.errors import ConfigError, DataError
from unrolled.text.batches import Examples
from unrolled.text.codec import Codec, Learnt
from unrolled.text.normal_form import NormalForm, normalise, recompose
from unrolled.text.pairs import DataFile, Pairs, read_pairs
from unrolled.text.report import DataReport, FileReport
from unrolled.text.sources import group_ids, hold_out, source_keys
from unrolled.text.tasks import PREFIX, draw_pairs, fixed_pairs, is_task, task_of, task_type, vocabularies
from unrolled.text.units import Units
from unrolled.text.unknown import UnknownSymbols
from unrolled.text.vocabulary import UNK

__all__ = ["Prepared", "prepare"]

FEW_PAIRS = 100
MOST_UNKNOWN = 0.2  # share of symbols above which a saved vocabulary is the wrong one


@dataclass(frozen=True)
class Prepared:
    """What training needs of the data.

    Parameters
    ----------
    codec : Codec
    train, dev : Examples
        Their `rows` index the pairs; over-long pairs have no example where they are dropped. `dev` is None if
        there is nothing to hold out.
    train_pairs, dev_pairs : Pairs
        Texts in normal form with composed letters, as `Codec.decode_target` writes them.
    report : DataReport
    digest : dict
        Plain JSON data: for `train` and `dev` the file or both files, SHA-256, that of the pairs (the same for LF and
        CR LF line ends) and counts; `dev_lines` are the line numbers held out of the training file.
    """

    codec: Codec
    train: Examples
    dev: Examples | None
    train_pairs: Pairs
    dev_pairs: Pairs | None
    report: DataReport
    digest: dict[str, Any]


def prepare(
    train_path: DataFile, dev_path: DataFile | None, data: Data, *, seed: int, codec: Codec | None = None
) -> Prepared:
    """Read, check, split, report and encode the data of a training run.

    Without `dev_path` a share of the distinct sources is held out, chosen by `seed`. Of a task (`task:NAME` in place of
    a file, settings in `data.task`) this is the first epoch, and the dev set that is always the same.

    Parameters
    ----------
    train_path, dev_path : path, or two
        Of pairs, or of sources and of targets.
    data : Data
    seed : int
    codec : Codec, optional
        Of a model that is trained further: its vocabularies are kept, and new symbols are noted.

    Raises
    ------
    DataError
        If a file cannot be used or no training pair is within the limits.
    ConfigError
        If `codec` cuts text in another way than `data` says.
    """
    if codec is not None:
        _check_same_text(codec.data, data)
    _check_task(str(train_path), dev_path, data)
    train, dev, notes = _read(train_path, dev_path, data, seed=seed)
    learnt = Learnt.of(data, train.sources, train.targets or []) if codec is None else codec.learnt
    units = learnt.units(data)
    train_part, dev_part = _Part.of(train, data, units), None if dev is None else _Part.of(dev, data, units)
    if not train_part.rows.size:
        raise DataError(f"all {len(train)} pairs are over the length limits; raise max_length", file=train.file)
    if data.task is not None and train_part.rows.size < len(train):
        raise ConfigError("data.task: its pairs are longer than data.source.max_length or data.target.max_length allow")
    saved, codec = codec, _fit(train_part.used, data, learnt) if codec is None else replace(codec, data=data)
    train_examples = train_part.encode(codec)
    dev_examples = None if dev_part is None or not dev_part.rows.size else dev_part.encode(codec)
    if saved is not None:
        notes = _foreign_notes(train_examples) + notes + _unknown_notes(train_part, train_examples, codec, "train")
    if dev_part is not None and dev_examples is not None:
        notes += _unknown_notes(dev_part, dev_examples, codec, "valid")
    notes += _size_notes(train_part, dev_part)
    report = DataReport.of(
        codec,
        (train, train_part.report),
        None if dev is None or dev_part is None else (dev, dev_part.report),
        notes=notes,
    )
    digest = {
        "train": _digest(train, train_path),
        "dev": None if dev is None or dev_path is None else _digest(dev, dev_path),
        "dev_lines": dev.lines.tolist() if dev is not None and dev_path is None and data.task is None else None,
    }
    return Prepared(codec, train_examples, dev_examples, train, dev, report, digest)


def _check_task(file: str, dev_file: DataFile | None, data: Data) -> None:
    name = None if data.task is None else PREFIX + data.task.type
    if is_task(file) and PREFIX + task_type(file) != name:
        raise ConfigError(f"data.task: expected the settings of {file}, got {'none' if name is None else name}")
    if name is not None and not is_task(file):
        raise ConfigError(f"data.task draws pairs: give {name} in place of {file}, or set data.task=none")
    if name is not None and dev_file is not None:
        raise ConfigError(f"{name} has a dev set of its own; leave out {dev_file}")


def _check_same_text(saved: Data, data: Data) -> None:
    for name, ours, theirs in (
        ("data.normal_form", saved.normal_form, data.normal_form),
        ("data.source.units", saved.source.units, data.source.units),
        ("data.target.units", saved.target.units, data.target.units),
        ("data.shared_vocabulary", saved.shared_vocabulary, data.shared_vocabulary),
        ("a features column", "features" in saved.columns, "features" in data.columns),
    ):
        if ours != theirs:
            raise ConfigError(f"{name}: the saved model has {ours}, the settings say {theirs}; they must agree")


def _read(
    train_path: DataFile, dev_path: DataFile | None, data: Data, *, seed: int
) -> tuple[Pairs, Pairs | None, list[str]]:
    """Training and dev pairs in composed normal form, and notes."""
    if data.task is not None:
        notes = [
            "every epoch draws new pairs; these counts are those of the first",
            f"at best without reading the source: {task_of(data.task).blind()}",
        ]
        return draw_pairs(data.task, np.arange(data.task.epoch_size), seed=seed), fixed_pairs(data.task, "dev"), notes
    pairs = _recomposed(read_pairs(train_path, data), data.normal_form)
    if dev_path is not None:
        dev = _recomposed(read_pairs(dev_path, data), data.normal_form)
        return pairs, dev, [*pairs.notes, *dev.notes]
    groups = group_ids(source_keys(pairs, normal_form=data.normal_form))
    train_rows, dev_rows = hold_out(groups, fraction=data.dev_fraction, limit=data.dev_limit, seed=seed)
    num_groups, num_held_out = np.unique(groups).size, np.unique(groups[dev_rows]).size
    if not dev_rows.size:
        return pairs, None, [*pairs.notes, "no valid set: one distinct source cannot be split; give a dev file"]
    held_out = f"{num_held_out} of {num_groups} distinct sources ({dev_rows.size} of {len(pairs)} pairs)"
    note = f"no dev file was given: {held_out} are held out as valid set (seed {seed})"
    return pairs.take(train_rows), pairs.take(dev_rows), [*pairs.notes, note]


def _recomposed(pairs: Pairs, form: NormalForm) -> Pairs:
    return replace(
        pairs,
        sources=[recompose(text, form) for text in pairs.sources],
        targets=[recompose(text, form) for text in pairs.targets or ()],
    )


@dataclass(frozen=True)
class _Part:
    """Pairs within the limits, which rows they are, and the report on all."""

    used: Pairs
    rows: NDArray[np.int64]
    report: FileReport

    @classmethod
    def of(cls, pairs: Pairs, data: Data, units: tuple[Units, Units]) -> _Part:
        targets = pairs.targets or []
        source_lengths = _row_lengths(pairs.sources, units[0], data.normal_form)
        target_lengths = _row_lengths(targets, units[1], data.normal_form)
        report = FileReport.of(pairs, source_lengths, target_lengths, data)
        is_within = (source_lengths <= data.source.max_length) & (target_lengths <= data.target.max_length)
        rows = np.arange(len(pairs))
        if is_within.all():
            return cls(pairs, rows, report)
        if data.over_long == "drop":
            return cls(pairs.take(rows[is_within]), rows[is_within], report)
        texts = (pairs.sources, source_lengths, data.source), (targets, target_lengths, data.target)
        sources, targets = (_cut(*side, cut, data.normal_form) for side, cut in zip(texts, units, strict=True))
        return cls(replace(pairs, sources=sources, targets=targets), rows, report)

    def encode(self, codec: Codec) -> Examples:
        targets = self.used.targets or []
        return Examples(
            codec.encode_sources(self.used.sources, self.used.features), codec.encode_targets(targets), self.rows
        )


def _row_lengths(texts: list[str], units: Units, form: NormalForm) -> NDArray[np.int64]:
    """Symbols of each text, end symbol counted."""
    return units.lengths([normalise(text, form) for text in texts]) + 1


def _cut(texts: list[str], lengths: NDArray[np.int64], side: Side, units: Units, form: NormalForm) -> list[str]:
    """Leave room for the end symbol, which a cut row has too."""
    texts = list(texts)
    for row in np.flatnonzero(lengths > side.max_length).tolist():
        texts[row] = units.head(normalise(texts[row], form), side.max_length - 1)
    return texts


def _fit(pairs: Pairs, data: Data, learnt: Learnt) -> Codec:
    if data.task is not None:
        return Codec(data, *vocabularies(data.task, data.normal_form))
    return Codec.fit(data, pairs.sources, pairs.targets or [], pairs.features, learnt=learnt)


def _foreign_notes(train: Examples) -> list[str]:
    """A warning where most of what is trained on further is nothing to the saved model."""
    notes = []
    for name, rows in (("source", train.source), ("target", train.target)):
        num_unknown = int((rows.values == UNK).sum())
        num_symbols = int(rows.values.size) - len(rows)  # without end symbols
        if num_unknown > MOST_UNKNOWN * num_symbols:
            notes.append(
                f"WARNING: {num_unknown} of {num_symbols} {name} symbols ({num_unknown / num_symbols:.0%}) are unknown"
                " to the saved model, which cannot tell them apart; train a new model on this data"
            )
    return notes


def _unknown_notes(part: _Part, examples: Examples, codec: Codec, name: str) -> list[str]:
    sources, targets = UnknownSymbols.of_sources(codec), UnknownSymbols.of_targets(codec)
    pairs, unknown_feature = part.used, codec.source.first_feature if codec.source.num_features else UNK
    for row in examples.source.rows_with(UNK, unknown_feature):
        features = () if pairs.features is None else pairs.features[row]
        sources.add(pairs.sources[row], line=int(pairs.lines[row]), features=features)
    for row in examples.target.rows_with(UNK):
        targets.add((pairs.targets or [])[row], line=int(pairs.lines[row]))
    lines = [
        ("source", sources.summary(cause="not in the vocabulary")),
        ("source", sources.casing()),
        ("target", targets.summary(cause="not in the vocabulary")),
    ]
    return [f"{name} {side}: {line}" for side, line in lines if line]


def _size_notes(train: _Part, dev: _Part | None) -> list[str]:
    notes = []
    if dev is not None and not dev.rows.size:
        notes.append(f"no valid set: all {dev.report.num_pairs} pairs are over the length limits")
    if train.rows.size < FEW_PAIRS:
        num_dev = 0 if dev is None else dev.rows.size
        notes.append(f"little data: {train.rows.size} training and {num_dev} valid pairs; figures on so few say little")
    return notes


def _digest(pairs: Pairs, path: DataFile) -> dict[str, Any]:
    content = hashlib.sha256()
    features = [";".join(names) for names in pairs.features or ()]
    for column in (pairs.sources, pairs.targets or [], features):
        content.update("\0".join(column).encode() + b"\0\0")  # no text has a NUL
    return {
        "files": [str(file) for file in (path if isinstance(path, tuple) else (path,))],
        "sha256": pairs.sha256,
        "content_sha256": content.hexdigest(),
        "num_pairs": len(pairs),
    }
