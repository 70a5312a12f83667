"""Several systems on one test file: runs of ours, and files of predictions from any program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unrolled.config import Data, Side, Text
from unrolled.errors import ConfigError
from unrolled.inference.evaluation import AnswerKey, Report
from unrolled.inference.loading import load_predictor
from unrolled.metrics import Comparison
from unrolled.metrics import compare as compare_evaluations
from unrolled.runs import Run
from unrolled.text import DataFile, read_lines

__all__ = ["Contest", "compare"]


@dataclass(frozen=True, eq=False)
class Contest:
    """Reports of all systems, and how each after the first differs from the first."""

    reports: tuple[Report, ...]
    differences: tuple[Comparison, ...]

    def lines(self) -> list[str]:
        """For people, one string a line."""
        first, *others = self.reports
        width = max(len(report.name) for report in self.reports)
        lines = [
            f"{first.evaluation.whole.num_sources} sources; normal form {first.evaluation.normal_form}; symbols:"
            f" {first.evaluation.unit}; 95 % intervals over sources"
        ]
        lines += [
            f"{report.name:<{width}}  wrong sources {report.error_rate}  symbol errors {report.symbol_error_rate}"
            for report in self.reports
        ]
        for other, difference in zip(others, self.differences, strict=True):
            lines += ["", f"{first.name} → {other.name}, paired", *(f"  {line}" for line in difference.lines())]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "systems": [report.to_json() for report in self.reports],
            "differences": [difference.to_json() for difference in self.differences],
        }


def compare(test: DataFile, systems: Sequence[str | Path]) -> Contest:
    """Compare systems on the same sources by paired bootstrap.

    Parameters
    ----------
    test : path, or two
        Pairs, or two parallel files: the accepted answers.
    systems : sequence of paths
        Run folders, and text files with one prediction a line: for each line of the test file or for each distinct
        source, alone or (as some programs write it) after the source and a tab. The first is the baseline.

    Raises
    ------
    ConfigError
        If there are fewer than two systems.
    DataError, CheckpointError
        If a file or a run cannot be used.
    """
    if len(systems) < 2:
        raise ConfigError(f"compare: expected at least two runs or files of predictions, got {len(systems)}")
    paths = [Path(system) for system in systems]
    folders = [path for path in paths if path.is_dir()]
    key = AnswerKey(test, _data_of(folders[0]) if folders else guess_data(test))
    reports = [_report(path, key) for path in paths]
    differences = [compare_evaluations(reports[0].evaluation, other.evaluation) for other in reports[1:]]
    return Contest(tuple(reports), tuple(differences))


def _data_of(path: Path) -> Data:
    data = Run.open(path).config.data
    if not isinstance(data, Data):
        kind = "a language model" if isinstance(data, Text) else "a model of vectors"
        raise ConfigError(f"compare grades answers to sources; {path} is {kind}: use unrolled evaluate")
    return data


def _report(path: Path, key: AnswerKey) -> Report:
    if not path.is_dir():
        return key.grade(_read_predictions(path, key), name=str(path))
    asked = key.questions
    return key.grade(load_predictor(path).predict(asked.sources, asked.features), name=str(path))


def _read_predictions(path: Path, key: AnswerKey) -> list[str]:
    """Lines of a file; where each repeats its source before a tab, what comes after the last tab."""
    lines = list(read_lines(path))
    sources = key.questions.sources if len(lines) == len(key.questions) else None
    if len(lines) == key.num_lines:
        by_line = dict(zip(key.pairs.lines.tolist(), key.pairs.sources, strict=True))
        sources = [by_line.get(line, "") for line in range(1, key.num_lines + 1)]
    if sources and all(line.startswith(f"{source}\t") for source, line in zip(sources, lines, strict=True) if source):
        return [line.rpartition("\t")[2] for line in lines]
    return lines


def guess_data(test: DataFile) -> Data:
    """Settings for a test file of which no run tells: its columns by their number, symbols by their spaces."""
    if isinstance(test, tuple):
        return Data(format="parallel", target=_spelt(list(read_lines(test[1]))))
    rows = [line.split("\t") for line in read_lines(test)]
    num_columns = max(map(len, rows), default=2)
    columns = ("source", "target", "features")[:num_columns] + ("-",) * (num_columns - 3)
    return Data(columns=columns, target=_spelt([row[1] if len(row) > 1 else "" for row in rows]))


def _spelt(targets: Sequence[str]) -> Side:
    """Symbols are set apart by spaces if most of the texts have any."""
    num_spaced = sum(" " in target for target in targets)
    return Side(units="space" if 2 * num_spaced > len(targets) else "character")
