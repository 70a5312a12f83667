"""Everything that is measured on one set of predictions, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from unrolled.metrics.bootstrap import RESAMPLES, Estimate, bootstrap_rate
from unrolled.metrics.edits import Confusion, Errors, confusions, count_errors
from unrolled.metrics.parts import Group, Item, by_length, by_training, group, worst_items
from unrolled.metrics.references import References
from unrolled.metrics.report import confusion_lines, group_lines, item_lines

__all__ = ["Evaluation", "evaluate"]

NUM_WORST = 20


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is wrong, how sure that is, and where it goes wrong.

    Attributes
    ----------
    error_rate : Estimate
        Share of the distinct sources whose prediction equals none of their answers (WER; 1 − accuracy).
    symbol_error_rate : Estimate
        Edits to the nearest answers / symbols of these answers (PER, CER).
    normal_form : str
        Unicode normal form in which predictions and answers were compared.
    unit : str
        What a symbol is.
    whole : Group
    by_length : tuple of Group
        By length of the source, in symbols.
    by_training : tuple of Group
        Sources that occur in the training data, and those that do not; empty where that is unknown.
    worst : tuple of Item
        Most edits first, ties in the order of the file.
    confusions : tuple of Confusion
        All edits, most frequent first.
    num_lines, num_answers : int
        Lines of the file, and distinct answers.
    errors : Errors
        Per source; what `compare` needs.
    references : References
    """

    error_rate: Estimate
    symbol_error_rate: Estimate
    normal_form: str
    unit: str
    whole: Group
    by_length: tuple[Group, ...]
    by_training: tuple[Group, ...]
    worst: tuple[Item, ...]
    confusions: tuple[Confusion, ...]
    num_lines: int
    num_answers: int
    errors: Errors = field(repr=False, compare=False)
    references: References = field(repr=False, compare=False)

    @property
    def accuracy(self) -> float:
        """Share of right predictions, 0 to 1."""
        return 1.0 - self.error_rate.value

    def to_json(self) -> dict[str, Any]:
        """Everything but what `compare` needs, as plain values; rates from 0 to 1."""
        return {
            "error_rate": asdict(self.error_rate),
            "symbol_error_rate": asdict(self.symbol_error_rate),
            "normal_form": self.normal_form,
            "unit": self.unit,
            "num_lines": self.num_lines,
            "num_answers": self.num_answers,
            "whole": self.whole.to_json(),
            "by_length": [part.to_json() for part in self.by_length],
            "by_training": [part.to_json() for part in self.by_training],
            "worst": [asdict(item) for item in self.worst],
            "confusions": [asdict(item) for item in self.confusions],
        }

    def lines(self, *, num_confusions: int = 10, num_worst: int = NUM_WORST) -> list[str]:
        """A report for people, one string a line."""
        return [
            *_summary(self),
            *group_lines("by source length", self.by_length),
            *group_lines("by occurrence in the training data", self.by_training),
            *confusion_lines(self.confusions[:num_confusions]),
            *item_lines(self.worst[:num_worst]),
        ]

    def text(self) -> str:
        """The lines of the report in one string."""
        return "\n".join(self.lines())


def evaluate(
    predictions: Sequence[Sequence[str]],
    references: References,
    *,
    normal_form: str,
    unit: str = "symbol",
    sources: Sequence[str] | None = None,
    source_lengths: Sequence[int] | None = None,
    is_seen: Sequence[bool] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Evaluation:
    """Measure one set of predictions.

    Parameters
    ----------
    predictions : sequence of sequences of symbols
        One a line, or one a distinct source; so are `sources`, `source_lengths` and `is_seen`.
    references : References
    normal_form : str
        That of predictions and references; stated in the report.
    unit : str
        What a symbol is, for the report.
    sources : sequence of str, optional
        How a source is shown; none for its key.
    source_lengths : sequence of int, optional
        In symbols; without them nothing is reported by length.
    is_seen : sequence of bool, optional
        Whether a source occurs in the training data.
    resamples, seed : int
        Of the bootstrap.

    Raises
    ------
    DataError
        If numbers of items do not fit, there are no items, or all references are empty.
    """
    errors = count_errors(predictions, references)
    shown = [_shown(key) for key in references.keys] if sources is None else references.pick(sources)
    predicted = [tuple(item) for item in references.pick(predictions)]
    return Evaluation(
        error_rate=bootstrap_rate(errors.per_source, resamples=resamples, seed=seed),
        symbol_error_rate=bootstrap_rate(errors.per_symbol, resamples=resamples, seed=seed),
        normal_form=normal_form,
        unit=unit,
        whole=group("all", errors, np.ones(len(references), dtype=bool)),
        by_length=() if source_lengths is None else by_length(errors, np.array(references.pick(source_lengths))),
        by_training=() if is_seen is None else by_training(errors, np.array(references.pick(is_seen), dtype=bool)),
        worst=worst_items(errors, references, shown, predicted, limit=NUM_WORST),
        confusions=confusions((errors.nearest[i], predicted[i]) for i in np.flatnonzero(errors.is_wrong)),
        num_lines=references.num_lines,
        num_answers=references.num_answers,
        errors=errors,
        references=references,
    )


def _summary(evaluation: Evaluation) -> list[str]:
    whole, name = evaluation.whole, f"{evaluation.unit} errors"
    width = max(len(name), len("wrong sources"))
    return [
        f"{whole.num_sources} sources, {evaluation.num_answers} distinct answers, {evaluation.num_lines} lines;"
        f" normal form {evaluation.normal_form}; 95 % intervals over sources",
        f"{'wrong sources':{width}}  {evaluation.error_rate}  {whole.num_wrong} of {whole.num_sources}",
        f"{name:{width}}  {evaluation.symbol_error_rate}  {whole.num_edits} edits to {whole.num_symbols} symbols",
    ]


def _shown(key: object) -> str:
    """A key for people: (source, features) without brackets and quotes."""
    if not isinstance(key, tuple):
        return str(key)
    return " ".join(_shown(part) for part in key if part not in ((), "", None))
