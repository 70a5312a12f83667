"""A model on a test file: what it predicts, what is wrong with it, and how sure that is."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unrolled.config import Data, Side
from unrolled.errors import DataError
from unrolled.inference.exposure import ExposureGap, exposure_gap
from unrolled.inference.translation import translation_scores
from unrolled.metrics import CorpusScore, Estimate, Evaluation, References
from unrolled.metrics import evaluate as measure
from unrolled.runs import DataDigest
from unrolled.text import DataFile, Pairs, normalise, read_lines, read_pairs, recompose, seen_sources, source_keys
from unrolled.text.tasks import Blind, fixed_pairs, is_task, named_task, task_of
from unrolled.text.units import UNITS, Units

if TYPE_CHECKING:
    from unrolled.inference.predictor import Predictor

__all__ = ["AnswerKey", "Report", "evaluate"]

UNIT_NAMES = {"character": "character", "space": "symbol", "byte": "byte", "bpe": "word", "unigram": "word"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything that is known about a system on a test file.

    Attributes
    ----------
    name : str
        The system: a run, an ensemble, or a file of predictions.
    evaluation : Evaluation
        Error rates, results by source length, the worst items, symbol confusions.
    predictions : tuple of str
        One for each line of the test file; empty for lines that hold no pair.
    exposure : ExposureGap, optional
        Of models; none for files of predictions.
    blind : Blind, optional
        Of tasks: the best that can be done without reading the source.
    translation : tuple of CorpusScore
        BLEU and chrF; empty where they were not asked for and targets are no sentences.
    beam : int, optional
        Items kept at each step of the search.
    seconds : float
        That predicting took.
    notes : tuple of str
        What a person should know about the test file: left-out lines, symbols never seen in training.
    """

    name: str
    evaluation: Evaluation
    predictions: tuple[str, ...]
    exposure: ExposureGap | None = None
    blind: Blind | None = None
    translation: tuple[CorpusScore, ...] = ()
    beam: int | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def error_rate(self) -> Estimate:
        """Share of the sources whose prediction is wrong (WER), with its 95 % interval."""
        return self.evaluation.error_rate

    @property
    def symbol_error_rate(self) -> Estimate:
        """Edits per symbol of the nearest answers (PER, CER), with its 95 % interval."""
        return self.evaluation.symbol_error_rate

    def lines(self) -> list[str]:
        """For people, one string a line."""
        search = "" if self.beam is None else f": beam {self.beam}, {self.seconds:.1f} s"
        gap = [] if self.exposure is None else self.exposure.lines()
        mark = [] if self.blind is None else [f"at best without reading the source: {self.blind}"]
        scores = [str(score) for score in self.translation]
        return [f"{self.name}{search}", *scores, *self.evaluation.lines(), *mark, *gap]

    def to_json(self) -> dict[str, Any]:
        """Plain values; rates from 0 to 1."""
        return {
            "name": self.name,
            "beam": self.beam,
            "seconds": self.seconds,
            "notes": list(self.notes),
            **self.evaluation.to_json(),
            "exposure": None if self.exposure is None else self.exposure.to_json(),
            "blind": None if self.blind is None else self.blind._asdict(),
            "translation": [asdict(score) for score in self.translation],
        }


class AnswerKey:
    """A file of pairs whose targets are the accepted answers, grouped by what is asked.

    Parameters
    ----------
    file : path, or two
        Pairs, one a line, or two parallel files, or pairs that were read already; a source on several lines has several
        accepted answers. Or `task:NAME` for its test pairs.
    data : Data
        How lines are read, and how texts are normalised and cut.
    """

    def __init__(self, file: DataFile | Pairs, data: Data) -> None:
        self.data = data
        self.blind: Blind | None = None
        if isinstance(file, Pairs):
            self.pairs, self.num_lines = file, int(file.lines.max())
            self._keys: Sequence[Hashable] = source_keys(file, normal_form=data.normal_form)
        elif is_task(file):
            task = named_task(str(file), data.task)
            self.pairs, self.blind = fixed_pairs(task, "test"), task_of(task).blind()
            self.num_lines = len(self.pairs)
            self._keys = range(self.num_lines)  # every draw counts, as it does for `blind`
        else:
            self.pairs = read_pairs(file, data)
            source = file[0] if isinstance(file, tuple) else file
            self.num_lines = sum(1 for _ in read_lines(source, encoding=data.encoding))
            self._keys = source_keys(self.pairs, normal_form=data.normal_form)
        self.file = self.pairs.file
        self.references = References.from_lines(self._keys, [self.cut(target) for target in self.pairs.targets or ()])
        self.questions = self.pairs.take(np.array(self.references.first, dtype=np.int64))
        """The first pair of each distinct source with its features."""

    def cut(self, text: str) -> tuple[str, ...]:
        """Symbols of an answer, in the form in which answers are compared."""
        form = self.data.normal_form
        return tuple(_measured(self.data.target).cut(recompose(normalise(text, form), form)))

    def grade(
        self,
        answers: Sequence[str],
        *,
        name: str,
        is_seen: Sequence[bool] | None = None,
        exposure: ExposureGap | None = None,
        beam: int | None = None,
        seconds: float = 0.0,
        notes: Sequence[str] = (),
    ) -> Report:
        """Measure answers: one a question, or one a line of the file.

        Raises
        ------
        DataError
            If their number fits neither.
        """
        given = self._one_a_question(answers, name=name)
        form = self.data.normal_form
        texts = [normalise(source, form) for source in self.questions.sources]
        evaluation = measure(
            [self.cut(answer) for answer in given],
            self.references,
            normal_form="as written" if form == "none" else form if form.endswith("C") else f"{form[:-1]}C",
            unit=UNIT_NAMES[self.data.target.units],
            sources=[" ".join([text, *names]) for text, names in zip(texts, self._features(), strict=True)],
            source_lengths=_measured(self.data.source).lengths(texts).tolist(),
            is_seen=is_seen,
        )
        worst = tuple(replace(item, line=int(self.pairs.lines[item.line - 1])) for item in evaluation.worst)
        return Report(
            name=name,
            evaluation=replace(evaluation, worst=worst),
            predictions=self._one_a_line(given),
            exposure=exposure,
            blind=self.blind,
            beam=beam,
            seconds=seconds,
            notes=(*self.pairs.notes, *notes),
        )

    def _features(self) -> Sequence[tuple[str, ...]]:
        return self.questions.features or [()] * len(self.questions)

    def _one_a_question(self, answers: Sequence[str], *, name: str) -> list[str]:
        if len(answers) == len(self.questions):
            return list(answers)
        if len(answers) == self.num_lines:
            return [answers[line - 1] for line in self.questions.lines]
        raise DataError(
            f"expected {self.num_lines} predictions, one for each line of {self.file}, or {len(self.questions)}, one"
            f" for each distinct source; got {len(answers)}",
            file=name,
        )

    def _one_a_line(self, given: Sequence[str]) -> tuple[str, ...]:
        place = {key: index for index, key in enumerate(self.references.keys)}
        lines = [""] * self.num_lines
        for line, key in zip(self.pairs.lines, self._keys, strict=True):
            lines[line - 1] = given[place[key]]
        return tuple(lines)


def _measured(side: Side) -> Units:
    """What errors are counted in: the symbols, but words in place of subwords, of which each model has its own."""
    return UNITS["space" if side.units in ("bpe", "unigram") else side.units]


def evaluate(
    model: Predictor, test: DataFile | Pairs, *, beam: int | None = None, tokenise: str | None = None
) -> Report:
    """Predict a file of pairs and measure what comes out.

    Each distinct source is predicted once and is right if it equals any of its answers.

    Parameters
    ----------
    model : Predictor
    test : path, or two
        Pairs in the columns of the model's training data, two parallel files, or pairs that were read already.
    beam : int, optional
        As for `Predictor.predict`.
    tokenise : str, optional
        How BLEU cuts words: `13a` for plain text, `none` for text that is cut already. Without it, only models of
        subwords are measured by BLEU, as plain text.

    Raises
    ------
    DataError
        If the file cannot be used.
    """
    key = AnswerKey(test, model.codec.data)
    asked = key.questions
    start = time.perf_counter()
    answers = model.predict(asked.sources, asked.features, beam=beam)
    seconds = time.perf_counter() - start
    report = key.grade(
        answers,
        name=model.name,
        is_seen=_is_seen(key, model.data),
        exposure=_exposure(model, key.questions),
        beam=beam or model.config.decoding.beam,
        seconds=seconds,
        notes=list(model.inspect(asked.sources, asked.features, lines=asked.lines.tolist()).messages()),
    )
    scores, notes = translation_scores(key.pairs, report.predictions, key.data, tokenise=tokenise)
    return replace(report, translation=scores, notes=(*report.notes, *notes))


def _exposure(model: Predictor, asked: Pairs) -> ExposureGap | None:
    """The gap on the pairs that the model can read and write; none where there are none."""
    sources = model.encode(asked.sources, asked.features)
    targets = model.codec.encode_targets(asked.targets or ())
    within = np.flatnonzero(model.is_within(sources, targets)).tolist()
    if not within:
        return None
    rows = [sources[i] for i in within]
    return exposure_gap(model.engine, rows, [targets[i] for i in within], limits=model.max_lengths(rows))


def _is_seen(key: AnswerKey, trained_on: DataDigest | None) -> list[bool] | None:
    """Which questions were in the training data; none where its file is gone or has changed."""
    if trained_on is None:
        return None
    try:
        trained_on.train.check()
        train = read_pairs(trained_on.train.files, key.data)
    except DataError:
        return None
    train = train.take(np.flatnonzero(~np.isin(train.lines, trained_on.dev_lines)))
    return [bool(seen) for seen in seen_sources(train, key.questions, normal_form=key.data.normal_form)]
