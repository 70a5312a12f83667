"""Pairs of a data file: the one reader, its columns and its features.

A line of a TSV file is split at tabs and nowhere else; quotes are ordinary symbols. Texts are kept as written:
normal forms and units are the codec's concern.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unrolled.config import Column, Data
from unrolled.errors import ConfigError, DataError
from unrolled.text.files import TextFile, read_text

__all__ = ["Pairs", "parse_input", "read_pairs", "split_features"]

COLUMN_WORDS = {"source", "target", "features", "src", "tgt", "trg", "input", "output", "x", "y", "text", "label"}
FORM_WORDS = {"word", "words", "lemma", "form", "forms", "inflected", "tag", "tags", "feats", "sentence", "translation"}
SPELLING_WORDS = {"grapheme", "graphemes", "spelling", "orthography", "transcription", "transliteration"}
SOUND_WORDS = {"phoneme", "phonemes", "phone", "phones", "pronunciation", "ipa"}
HEADER_WORDS = COLUMN_WORDS | FORM_WORDS | SPELLING_WORDS | SOUND_WORDS
MOST_LISTED = 5


@dataclass(frozen=True)
class Pairs:
    """The usable lines of one file, by column.

    Parameters
    ----------
    file : str
        Where they come from.
    lines : int64 array (N,)
        Line number of each pair in the file, counted from 1.
    sources : list of str
        Texts as written.
    targets : list of str or None
        None if the file holds sources only.
    features : list of tuples of str or None
        None without a features column.
    notes : tuple of str
        What a person should know about the file, one line each.
    sha256 : str
        Of the file's bytes.
    """

    file: str
    lines: NDArray[np.int64]
    sources: list[str]
    targets: list[str] | None
    features: list[tuple[str, ...]] | None = None
    notes: tuple[str, ...] = ()
    sha256: str = ""

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, rows: NDArray[np.int64]) -> Pairs:
        """The pairs of these rows, in their order."""
        chosen = rows.tolist()
        return replace(
            self,
            lines=self.lines[rows],
            sources=[self.sources[row] for row in chosen],
            targets=None if self.targets is None else [self.targets[row] for row in chosen],
            features=None if self.features is None else [self.features[row] for row in chosen],
        )


def read_pairs(path: str | Path, data: Data, *, need_target: bool = True) -> Pairs:
    """Read a data file into columns.

    Lines whose source or (where there is one) target is blank, that is empty or white space only, are left out and
    noted with their numbers. Every line is data unless `data.header` says that the first one is not.

    Parameters
    ----------
    path : path
        UTF-8 (or `data.encoding`), plain or gzip; see `unrolled.text.files`.
    data : Data
        Columns, format, encoding and header.
    need_target : bool
        Whether the target column must be there; if not, files without it (and without skipped columns) are
        accepted too.

    Raises
    ------
    DataError
        If the file cannot be read or decoded, a line has another number of columns, quoting is broken (CSV), or
        no pair is left.
    """
    text = read_text(path, encoding=data.encoding)
    table = _csv_table(text) if data.format == "csv" else _tsv_table(text)
    if data.header:
        table = Table(table.lines[1:], table.rows[1:])
    table, num_blank = _without_blank_lines(table)
    if not table.rows:
        raise DataError("holds no data; expected one pair a line", file=text.file)
    shape = _shape_of(table, data, need_target=need_target)
    _check_columns(table, shape, file=text.file)
    notes = text.notes + (() if data.header else _header_notes(table, file=text.file))
    return _usable(_columns(table, shape, text), num_blank=num_blank, notes=notes)


class Table(NamedTuple):
    """Fields of each line, and the lines' numbers."""

    lines: list[int]
    rows: list[list[str]]


class Shape(NamedTuple):
    """Where the columns of a file are."""

    columns: tuple[Column, ...]
    source: int
    target: int | None
    features: int | None

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Shape:
        """Find the places of the named columns."""

        def place(name: Column) -> int | None:
            return columns.index(name) if name in columns else None

        return cls(tuple(columns), columns.index("source"), place("target"), place("features"))

    def __str__(self) -> str:
        return f"{len(self.columns)} column{'s' * (len(self.columns) > 1)} ({', '.join(self.columns)})"


def _shapes(data: Data, *, need_target: bool) -> list[Shape]:
    """Accepted shapes, best first: as declared, without the target, only what the model reads."""
    shapes = [Shape.of(data.columns)]
    if not need_target:
        shapes.append(Shape.of([column for column in data.columns if column != "target"]))
        shapes.append(Shape.of([column for column in data.columns if column in ("source", "features")]))
    return shapes


def _tsv_table(text: TextFile) -> Table:
    return Table(list(range(1, len(text.lines) + 1)), [line.split("\t") for line in text.lines])


def _csv_table(text: TextFile) -> Table:
    reader = csv.reader((line + "\n" for line in text.lines), strict=True)
    table, start = Table([], []), 1
    try:
        for row in reader:
            if reader.line_num != start:
                raise DataError("a field holds a line break; a pair is one line", file=text.file, line=start)
            table.lines.append(start)
            table.rows.append(row)
            start = reader.line_num + 1
    except csv.Error as error:
        is_open = "unexpected end" in str(error) or "field limit" in str(error)
        cause = "a quote is opened and not closed" if is_open else str(error)
        raise DataError(f"not CSV: {cause}", file=text.file, line=start) from None
    return table


def _without_blank_lines(table: Table) -> tuple[Table, int]:
    keep = [bool("".join(row).strip()) for row in table.rows]
    if all(keep):
        return table, 0
    kept = Table(list(compress(table.lines, keep)), list(compress(table.rows, keep)))
    return kept, len(keep) - len(kept.rows)


def _shape_of(table: Table, data: Data, *, need_target: bool) -> Shape:
    """Choose the shape that fits the first line; as declared if none does."""
    shapes = _shapes(data, need_target=need_target)
    if need_target and shapes[0].target is None:
        raise ConfigError(f"data.columns: no column is the target, got {','.join(data.columns)}")
    return next((shape for shape in shapes if len(shape.columns) == len(table.rows[0])), shapes[0])


def _check_columns(table: Table, shape: Shape, *, file: str) -> None:
    expected = len(shape.columns)
    wrong = [row for row, fields in enumerate(table.rows) if len(fields) != expected]
    if not wrong:
        return
    first = wrong[0]
    raise DataError(
        f"expected {shape}, got {len(table.rows[first])}; {_count(len(wrong), 'line')} of {len(table.rows)}"
        f" {'is' if len(wrong) == 1 else 'are'} wrong; name every column with --columns, '-' for one to skip",
        file=file,
        line=table.lines[first],
    )


def _header_notes(table: Table, *, file: str) -> tuple[str, ...]:
    names = [field.strip().lower() for field in table.rows[0]]
    if not all(name in HEADER_WORDS for name in names) or len(table.rows) == 1:
        return ()
    looks = f"{file}, line {table.lines[0]}: looks like column names ({', '.join(names)}) but is taken as data"
    return (f"{looks}; set data.header=true to skip it",)


def _columns(table: Table, shape: Shape, text: TextFile) -> Pairs:
    return Pairs(
        file=text.file,
        lines=np.array(table.lines, dtype=np.int64),
        sources=[row[shape.source] for row in table.rows],
        targets=None if shape.target is None else [row[shape.target] for row in table.rows],
        features=None if shape.features is None else _features(table, shape.features, file=text.file),
        sha256=text.sha256,
    )


def _features(table: Table, column: int, *, file: str) -> list[tuple[str, ...]]:
    known: dict[str, tuple[str, ...]] = {}  # few distinct sets, shared by many lines
    for line, row in zip(table.lines, table.rows, strict=True):
        if row[column] not in known:
            known[row[column]] = split_features(row[column], file=file, line=line)
    return [known[row[column]] for row in table.rows]


def _usable(pairs: Pairs, *, num_blank: int, notes: tuple[str, ...]) -> Pairs:
    """Leave out pairs with a blank side and say which."""
    no_source = np.array([not source.strip() for source in pairs.sources])
    no_target = np.array([not target.strip() for target in pairs.targets or ()] or no_source) & ~no_source
    parts = [f"{num_blank} blank"] if num_blank else []
    for name, missing in (("source", no_source), ("target", no_target)):
        if missing.any():
            parts.append(f"{missing.sum()} without {name} ({_listed(pairs.lines[missing])})")
    if parts:
        num_left_out = num_blank + int((no_source | no_target).sum())
        notes = (*notes, f"{pairs.file}: {_count(num_left_out, 'line')} left out: {', '.join(parts)}")
    kept = np.flatnonzero(~(no_source | no_target))
    if not kept.size:
        raise DataError(f"holds no data: {', '.join(parts)}", file=pairs.file)
    return replace(pairs if kept.size == len(pairs) else pairs.take(kept), notes=notes)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(lines: NDArray[np.int64]) -> str:
    shown = ", ".join(str(line) for line in lines[:MOST_LISTED])
    more = f" and {lines.size - MOST_LISTED} more" if lines.size > MOST_LISTED else ""
    return f"line{'s' * (lines.size > 1)} {shown}{more}"


def split_features(text: str, *, file: str | None = None, line: int | None = None) -> tuple[str, ...]:
    """Split a features field at `;` outside parentheses: `V;SBJV;ARG(NOM;3)` has three.

    White space around a feature and empty features are dropped.

    Raises
    ------
    DataError
        If parentheses do not match.
    """
    if "(" not in text and ")" not in text:
        parts = text.split(";")
    else:
        depths = np.cumsum([(symbol == "(") - (symbol == ")") for symbol in text])
        if depths.min() < 0 or depths[-1]:
            raise DataError(f"parentheses do not match in features {text!r}", file=file, line=line)
        cuts = [place for place, symbol in enumerate(text) if symbol == ";" and depths[place] == 0]
        parts = [text[before + 1 : after] for before, after in pairwise([-1, *cuts, len(text)])]
    return tuple(part.strip() for part in parts if part.strip())


def parse_input(
    line: str, data: Data, *, file: str | None = None, number: int | None = None
) -> tuple[str, tuple[str, ...]]:
    """Take the source and the features from one line of prediction input.

    The line is split at tabs, whatever the format of the training file: columns as declared, or without the
    target, or only what the model reads. A blank line is an empty source.

    Raises
    ------
    DataError
        If the line has none of these numbers of columns, naming `file` and line `number`.
    """
    if not line.strip():
        return line.replace("\t", ""), ()
    fields = line.split("\t")
    shapes = _shapes(data, need_target=False)
    shape = next((shape for shape in shapes if len(shape.columns) == len(fields)), None)
    if shape is None:
        raise DataError(f"expected {shapes[-1]}, got {len(fields)}", file=file, line=number)
    features = () if shape.features is None else split_features(fields[shape.features], file=file, line=number)
    return fields[shape.source], features
