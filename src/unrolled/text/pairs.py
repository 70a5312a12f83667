"""Pairs of a data file, or of two parallel ones: the one reader.

A line of a TSV file is split at tabs and nowhere else; quotes are ordinary symbols. Texts are kept as written:
normal forms and units are the codec's concern.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unrolled.config import Data
from unrolled.errors import ConfigError, DataError
from unrolled.text.columns import Shape, shapes_of, split_features
from unrolled.text.files import TextFile, read_text
from unrolled.text.wording import counted, listed

__all__ = ["DataFile", "Pairs", "read_pairs", "read_parallel"]

DataFile = str | Path | tuple[str | Path, str | Path]
"""A file of pairs, or two parallel ones: of sources and of targets."""

COLUMN_WORDS = {"source", "target", "features", "src", "tgt", "trg", "input", "output", "x", "y", "text", "label"}
FORM_WORDS = {"word", "words", "lemma", "form", "forms", "inflected", "tag", "tags", "feats", "sentence", "translation"}
SPELLING_WORDS = {"grapheme", "graphemes", "spelling", "orthography", "transcription", "transliteration"}
SOUND_WORDS = {"phoneme", "phonemes", "phone", "phones", "pronunciation", "ipa"}
HEADER_WORDS = COLUMN_WORDS | FORM_WORDS | SPELLING_WORDS | SOUND_WORDS


@dataclass(frozen=True)
class Pairs:
    """The usable lines of one file, by column.

    Parameters
    ----------
    file : str
        Where they come from; of two parallel files both, with `and` between them.
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
        Of the file's bytes; of two parallel files both, with a space between them.
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


def read_pairs(path: DataFile, data: Data, *, need_target: bool = True) -> Pairs:
    """Read a data file into columns; two parallel ones as `read_parallel` does.

    Lines whose source or (where there is one) target is blank, that is empty or white space only, are left out and
    noted with their numbers. Every line is data unless `data.header` says that the first one is not.

    Parameters
    ----------
    path : path, or two
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
    if isinstance(path, tuple):
        return read_parallel(*path, data)
    text = read_text(path, encoding=data.encoding)
    table = _csv_table(text) if data.format == "csv" else _tsv_table(text)
    if data.header:
        table = Table(table.lines[1:], table.rows[1:])
    table, blank_lines = _without_blank_lines(table)
    if not table.rows:
        raise DataError("holds no data; expected one pair a line", file=text.file)
    shape = _shape_of(table, data, need_target=need_target)
    _check_columns(table, shape, file=text.file)
    notes = text.notes + (() if data.header else _header_notes(table, file=text.file))
    return _usable(_columns(table, shape, text), blank_lines, notes=notes)


def read_parallel(source: str | Path, target: str | Path, data: Data) -> Pairs:
    """Read two files whose lines with the same number are a pair.

    Lines with a blank side are left out and noted, as in `read_pairs`; nothing is ever cut to the shorter file.

    Parameters
    ----------
    source, target : path
        As in `read_pairs`, but every line is one text, tabs included.
    data : Data
        Its encoding.

    Raises
    ------
    DataError
        If a file cannot be read, the numbers of lines differ, or no pair is left.
    ConfigError
        If the data have features, for which two files have no place.
    """
    if "features" in data.columns:
        raise ConfigError("data.columns: two parallel files have no column of features; give one file with columns")
    sources, targets = (read_text(path, encoding=data.encoding) for path in (source, target))
    if len(sources.lines) != len(targets.lines):
        counts = f"{counted(len(sources.lines), 'source line')}, {counted(len(targets.lines), 'target line')}"
        raise DataError(f"{counts}; expected as many of both{_blank_hint(sources, targets)}", file=targets.file)
    return _usable(
        Pairs(
            file=f"{sources.file} and {targets.file}",
            lines=np.arange(1, len(sources.lines) + 1),
            sources=sources.lines,
            targets=targets.lines,
            sha256=f"{sources.sha256} {targets.sha256}",
        ),
        [],
        notes=sources.notes + targets.notes,
    )


def _blank_hint(sources: TextFile, targets: TextFile) -> str:
    """Where a stray empty line may be: the first blank of the longer file."""
    name, longer = max((("source", sources), ("target", targets)), key=lambda side: len(side[1].lines))
    blank = next((number for number, line in enumerate(longer.lines, start=1) if not line.strip()), None)
    return "" if blank is None else f"; {name} line {blank} is blank, see whether it belongs there"


class Table(NamedTuple):
    """Fields of each line, and the lines' numbers."""

    lines: list[int]
    rows: list[list[str]]


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


def _without_blank_lines(table: Table) -> tuple[Table, list[int]]:
    keep = [bool("".join(row).strip()) for row in table.rows]
    if all(keep):
        return table, []
    blank = [line for line, is_kept in zip(table.lines, keep, strict=True) if not is_kept]
    return Table(list(compress(table.lines, keep)), list(compress(table.rows, keep))), blank


def _shape_of(table: Table, data: Data, *, need_target: bool) -> Shape:
    """Choose the shape that fits the first line; as declared if none does."""
    shapes = shapes_of(data, need_target=need_target)
    if need_target and shapes[0].target is None:
        raise ConfigError(f"data.columns: no column is the target, got {','.join(data.columns)}")
    return next((shape for shape in shapes if len(shape.columns) == len(table.rows[0])), shapes[0])


def _check_columns(table: Table, shape: Shape, *, file: str) -> None:
    expected = len(shape.columns)
    wrong = [row for row, fields in enumerate(table.rows) if len(fields) != expected]
    if not wrong:
        return
    first = wrong[0]
    is_text = all(len(fields) == 1 for fields in table.rows)
    advice = "name every column with --columns, '-' for one to skip"
    kind = "take a preset such as char-lm if it is running text, else " if is_text else ""
    raise DataError(
        f"expected {shape}, got {len(table.rows[first])}; {counted(len(wrong), 'line')} of {len(table.rows)}"
        f" {'is' if len(wrong) == 1 else 'are'} wrong;"
        f" to train on it, {kind}{advice}",
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


def _usable(pairs: Pairs, blank_lines: list[int], *, notes: tuple[str, ...]) -> Pairs:
    """Leave out pairs with a blank side and say which."""
    no_source = np.array([not source.strip() for source in pairs.sources])
    no_target = np.array([not target.strip() for target in pairs.targets or ()] or no_source) & ~no_source
    left_out = {
        "blank": blank_lines,
        "without source": pairs.lines[no_source].tolist(),
        "without target": pairs.lines[no_target].tolist(),
    }
    reasons = ", ".join(f"{len(lines)} {why} ({listed(lines)})" for why, lines in left_out.items() if lines)
    kept = np.flatnonzero(~(no_source | no_target))
    if not kept.size:
        raise DataError(f"holds no data: {reasons}", file=pairs.file)
    if reasons:
        notes = (*notes, f"{pairs.file}: {counted(sum(map(len, left_out.values())), 'line')} left out: {reasons}")
    return replace(pairs if kept.size == len(pairs) else pairs.take(kept), notes=notes)
