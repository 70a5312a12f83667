"""What is in the data, told before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.config import Data
from unrolled.text.codec import Codec
from unrolled.text.normal_form import NormalForm
from unrolled.text.pairs import Pairs
from unrolled.text.sources import group_ids, source_keys
from unrolled.text.wording import counted

__all__ = ["DataReport", "FileReport", "Lengths", "Overlap"]


@dataclass(frozen=True)
class Lengths:
    """Lengths of one column in symbols, the end symbol counted."""

    mean: float
    median: float
    longest: int
    longest_line: int
    """Line number of the (first) longest."""
    limit: int
    num_over: int
    """How many are longer than the limit."""

    @classmethod
    def of(cls, lengths: NDArray[np.int64], lines: NDArray[np.int64], *, limit: int) -> Self:
        """Measure a column."""
        place = int(lengths.argmax())
        return cls(
            mean=float(lengths.mean()),
            median=float(np.median(lengths)),
            longest=int(lengths[place]),
            longest_line=int(lines[place]),
            limit=limit,
            num_over=int((lengths > limit).sum()),
        )

    def __str__(self) -> str:
        return f"mean {self.mean:.1f}, median {self.median:g}, longest {self.longest} (line {self.longest_line})"


@dataclass(frozen=True)
class FileReport:
    """One set of pairs, before over-long ones are dropped or cut."""

    file: str
    num_pairs: int
    num_sources: int
    """Distinct sources, with their features."""
    num_duplicates: int
    """Pairs that repeat an earlier pair."""
    num_ambiguous: int
    """Sources with more than one target."""
    best_accuracy: float
    """Share of the pairs that is right if every source gets its most frequent target."""
    num_over: int
    """Pairs with a side over its limit."""
    source: Lengths
    target: Lengths

    @classmethod
    def of(cls, pairs: Pairs, source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64], data: Data) -> Self:
        """Count and measure the pairs."""
        assert pairs.targets is not None
        keys = group_ids(source_keys(pairs, normal_form=data.normal_form))
        counts = Counter(zip(keys.tolist(), pairs.targets, strict=True))
        groups = np.fromiter((key for key, _ in counts), np.int64, len(counts))
        sizes = np.fromiter(counts.values(), np.int64, len(counts))
        most = np.zeros(keys.max(initial=-1) + 1, dtype=np.int64)
        np.maximum.at(most, groups, sizes)
        limits = data.source.max_length, data.target.max_length
        return cls(
            file=pairs.file,
            num_pairs=len(pairs),
            num_sources=most.size,
            num_duplicates=len(pairs) - len(counts),
            num_ambiguous=int((np.bincount(groups) > 1).sum()),
            best_accuracy=float(most.sum() / len(pairs)),
            num_over=int(((source_lengths > limits[0]) | (target_lengths > limits[1])).sum()),
            source=Lengths.of(source_lengths, pairs.lines, limit=limits[0]),
            target=Lengths.of(target_lengths, pairs.lines, limit=limits[1]),
        )


@dataclass(frozen=True)
class Overlap:
    """How much of the dev set is in the training set."""

    num_pairs: int
    num_seen_pairs: int
    num_sources: int
    """Distinct dev sources, with their features."""
    num_seen_sources: int
    num_seen_texts: int
    """Distinct dev sources whose text is in training, be it with other features."""

    @classmethod
    def of(cls, train: Pairs, dev: Pairs, *, normal_form: NormalForm) -> Self:
        """Compare two sets of pairs."""
        assert train.targets is not None
        assert dev.targets is not None
        train_keys, dev_keys = (source_keys(pairs, normal_form=normal_form) for pairs in (train, dev))
        known_pairs = set(zip(train_keys, train.targets, strict=True))
        known, texts, distinct = set(train_keys), set(train.sources), set(dev_keys)
        return cls(
            num_pairs=len(dev),
            num_seen_pairs=sum(pair in known_pairs for pair in zip(dev_keys, dev.targets, strict=True)),
            num_sources=len(distinct),
            num_seen_sources=len(distinct & known),
            num_seen_texts=len({key for key, text in zip(dev_keys, dev.sources, strict=True) if text in texts}),
        )

    def __str__(self) -> str:
        seen = f"{self.num_seen_pairs} of {self.num_pairs} pairs and {self.num_seen_sources} of {self.num_sources}"
        others = self.num_seen_texts - self.num_seen_sources
        return f"{seen} sources occur in train" + (f", {others} more with other features" if others else "")


@dataclass(frozen=True)
class DataReport:
    """Everything that a person should see of the data before training.

    Parameters
    ----------
    train : FileReport
    dev : FileReport or None
    overlap : Overlap or None
        None without dev pairs.
    num_source_symbols, num_target_symbols, num_features : int
        Sizes of the vocabularies, specials and the unknown feature not counted.
    over_long : str
        `drop` or `cut`.
    notes : tuple of str
        One line each.
    """

    train: FileReport
    dev: FileReport | None
    overlap: Overlap | None
    num_source_symbols: int
    num_target_symbols: int
    num_features: int
    over_long: str
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        codec: Codec,
        train: tuple[Pairs, FileReport],
        dev: tuple[Pairs, FileReport] | None,
        *,
        notes: Sequence[str] = (),
    ) -> Self:
        """Put the parts together."""
        overlap = None if dev is None else Overlap.of(train[0], dev[0], normal_form=codec.data.normal_form)
        return cls(
            train=train[1],
            dev=None if dev is None else dev[1],
            overlap=overlap,
            num_source_symbols=len(codec.source.symbols),
            num_target_symbols=len(codec.target.symbols),
            num_features=len(codec.source.features or ()),
            over_long=codec.data.over_long,
            notes=tuple(notes),
        )

    def lines(self) -> list[str]:
        """The report as text."""
        lines = [f"train: {_described(self.train)}"]
        lines += [] if self.dev is None else [f"valid: {_described(self.dev)}"]
        lines.append(f"source: {counted(self.num_source_symbols, 'symbol')}; length {self.train.source}")
        lines.append(f"target: {counted(self.num_target_symbols, 'symbol')}; length {self.train.target}")
        lines += [f"features: {self.num_features}"] if self.num_features else []
        lines.append(self._duplicates())
        if self.train.num_ambiguous:
            lines.append(
                f"ambiguous: {counted(self.train.num_ambiguous, 'source')} in train"
                f" {'has' if self.train.num_ambiguous == 1 else 'have'} several targets; at best"
                f" {100 * self.train.best_accuracy:.1f} % of its pairs can be right"
            )
        return [*lines, *self._over_long(), *(f"note: {note}" for note in self.notes)]

    def _duplicates(self) -> str:
        line = f"{counted(self.train.num_duplicates, 'duplicate pair')} in train"
        return line if self.overlap is None else f"{line}; valid: {self.overlap}"

    def _over_long(self) -> list[str]:
        limits = f"{self.train.source.limit} source or {self.train.target.limit} target symbols (end symbol counted)"
        action = {"drop": "dropped", "cut": "cut"}[self.over_long]
        parts = []
        for name, report in (("train", self.train), ("valid", self.dev)):
            if report is None:
                continue
            part = f"{name}: {report.num_over} of {report.num_pairs} pairs"
            longest = [
                f"longest {side} {lengths.longest} in line {lengths.longest_line}"
                for side, lengths in (("source", report.source), ("target", report.target))
                if lengths.num_over
            ]
            parts.append(f"{part} {action} ({', '.join(longest)})" if longest else part)
        return [f"over {limits}: {'; '.join(parts)}; prediction reads every line whole"]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


def _described(report: FileReport) -> str:
    sources = counted(report.num_sources, "distinct source")
    names = " and ".join(Path(file).name for file in report.file.split(" and "))
    return f"{counted(report.num_pairs, 'pair')}, {sources} ({names})"
