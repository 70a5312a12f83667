"""A trained model with its vocabulary: texts in, texts out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unrolled.config import Config
from unrolled.decoding import Engine, Hypothesis, LengthPenalty, SamplingPolicy, beam_search, greedy, sample, score
from unrolled.errors import ConfigError, ShapeError, VocabularyError
from unrolled.inference.inputs import InputNotes, symbol_lengths
from unrolled.inference.prediction import NOTHING, UNREADABLE, Prediction
from unrolled.runs import DataDigest
from unrolled.text import (
    EOS,
    UNK,
    Codec,
    DataFile,
    Pairs,
    Ragged,
    UnknownSymbols,
    evaluation_batches,
    in_order,
    split_features,
)

if TYPE_CHECKING:
    from unrolled.inference.evaluation import Report

__all__ = ["Features", "Prediction", "Predictor"]

BATCH_ROWS = 1024  # items of all beams that are searched together
BATCH_TOKENS = 1 << 12  # padded source symbols, times the beam, that are searched together; more only adds padding

Ids = NDArray[np.integer[Any]]
Features = Sequence[str | Sequence[str]]
"""Features of each source: `"N;PL"` or `("N", "PL")`."""


class Predictor:
    """A model that is ready to use; `unrolled.load` makes one.

    Results depend neither on the order of the sources nor on what else is asked at the same time.

    Parameters
    ----------
    engine : Engine
        One model, or an ensemble.
    codec : Codec
        Its text side.
    config : Config
        Settings of the run; `config.decoding` gives the defaults of every search.
    name : str
        What reports call it.
    data : DataDigest, optional
        What the run was trained on: longer sources are pointed out, and reports tell seen and unseen ones apart.
    source_limit, target_limit : int, optional
        Most symbols that the model can read and write, end symbols included; none for any number.
    """

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        config: Config,
        *,
        name: str,
        data: DataDigest | None = None,
        source_limit: int | None = None,
        target_limit: int | None = None,
    ) -> None:
        self.engine = engine
        self.codec = codec
        self.config = config
        self.name = name
        self.data = data
        self.source_limit = source_limit
        self.target_limit = target_limit

    def predict(
        self,
        sources: Sequence[str],
        features: Features | None = None,
        *,
        beam: int | None = None,
        allow_unknown: bool = True,
    ) -> list[str]:
        """The best output for each source, in their order.

        Parameters
        ----------
        sources : sequence of str
            A blank one (white space only, unless the model knows it as a symbol) gives an empty output, and so does one
            that is longer than the model can read.
        features : sequence, optional
            Of each source, for models with a features column.
        beam : int, optional
            Items kept at each step, 1 for greedy; the run's setting where it is absent.
        allow_unknown : bool
            Whether symbols that never occurred in training are read as one unknown symbol; else they are refused.

        Raises
        ------
        VocabularyError
            If there is an unknown symbol and none is allowed; each is named with its line.
        """
        if not allow_unknown:
            self.inspect(sources, features).refuse_unknown()
        return [best.text for best, *_ in self.search(sources, features, beam=beam)]

    def search(
        self,
        sources: Sequence[str],
        features: Features | None = None,
        *,
        beam: int | None = None,
        num_best: int = 1,
        prefixes: Sequence[str] | None = None,
        need_attention: bool = False,
    ) -> list[list[Prediction]]:
        """The `num_best` best outputs for each source, best first, their texts distinct.

        There may be fewer than `num_best` where no more exist. A source that is longer than the model can read has one
        empty output that is not finished, with `log_prob` -inf.

        Parameters
        ----------
        sources, features, beam
            As for `predict`.
        num_best : int
        prefixes : sequence of str, optional
            What each output is forced to begin with; its symbols count in `log_prob`, and come on top of the greatest
            output length. Of subwords, a prefix had better end with a word.
        need_attention : bool

        Raises
        ------
        ConfigError
            If `num_best` or `beam` is below 1, or attention is asked of a model that has none.
        ShapeError
            If there is not one prefix a source.
        VocabularyError
            If a prefix holds a symbol that the model cannot write.
        """
        beam = self.config.decoding.beam if beam is None else beam
        if min(beam, num_best) < 1:
            raise ConfigError(f"search needs beam >= 1 and num_best >= 1, got beam {beam} and num_best {num_best}")
        self._check_attention(need_attention)
        width = max(beam, num_best)

        def find(inputs: _Inputs) -> list[list[Prediction]]:
            found = self._search(inputs, width, num_best, need_attention=need_attention)
            return [self._distinct(source, items) for source, items in zip(inputs.sources, found, strict=True)]

        return self._answers(sources, features, prefixes, find, width=width)

    def sample(
        self,
        sources: Sequence[str],
        features: Features | None = None,
        *,
        seed: int = 0,
        policy: SamplingPolicy | None = None,
        num_samples: int = 1,
        lines: Sequence[int] | None = None,
        prefixes: Sequence[str] | None = None,
        need_attention: bool = False,
    ) -> list[list[Prediction]]:
        """Outputs that are drawn at random, `num_samples` for each source, in the order of drawing.

        An output follows from the source, `seed`, its line and its place among the draws alone.

        Parameters
        ----------
        sources, features, prefixes, need_attention
            As for `search`.
        seed : int
            0 or more.
        policy : SamplingPolicy, optional
            Temperature, top-k, top-p; none for the model's own distribution.
        num_samples : int
        lines : sequence of int, optional
            What tells the sources apart, 0 or more; none for 0, 1, 2, …

        Raises
        ------
        ConfigError
            If `num_samples` is below 1 or `seed` below 0, or attention is asked of a model that has none.
        ShapeError, VocabularyError
            As for `search`.
        """
        if num_samples < 1 or seed < 0:
            raise ConfigError(f"sampling needs num_samples >= 1 and seed >= 0, got {num_samples} and {seed}")
        self._check_attention(need_attention)
        numbers = np.arange(len(sources)) if lines is None else np.asarray(lines, dtype=np.int64)

        def find(inputs: _Inputs) -> list[list[Prediction]]:
            draws = [
                sample(
                    self.engine,
                    inputs.sources,
                    max_length=inputs.limits,
                    seed=seed,
                    lines=numbers[inputs.rows].tolist(),
                    draw=draw,
                    policy=policy,
                    penalty=self._penalty(),
                    prefixes=inputs.prefixes,
                    need_attention=need_attention,
                )
                for draw in range(num_samples)
            ]
            return [
                [self._prediction(source, item) for item in items]
                for source, items in zip(inputs.sources, zip(*draws, strict=True), strict=True)
            ]

        return self._answers(sources, features, prefixes, find, width=1)

    def _answers(
        self,
        sources: Sequence[str],
        features: Features | None,
        prefixes: Sequence[str] | None,
        find: Callable[[_Inputs], list[list[Prediction]]],
        *,
        width: int,
    ) -> list[list[Prediction]]:
        """What is known without the model, and what `find` finds in batches of alike lengths, `width` rows a source."""
        encoded = self.encode(sources, features)
        forced = None if prefixes is None else self._encode_prefixes(prefixes, num_sources=len(sources))
        known = self._without_search(sources, encoded)
        rows = np.array([row for row, answer in enumerate(known) if answer is None], dtype=np.int64)
        batches = evaluation_batches(
            encoded.lengths[rows], batch_tokens=BATCH_TOKENS // width, max_batch_size=max(1, BATCH_ROWS // width)
        )
        found = [find(self._inputs(rows[batch], encoded, forced)) for batch in batches]
        answers = iter(in_order(batches, found))
        return [next(answers) if answer is None else [answer] for answer in known]

    def _inputs(self, rows: NDArray[np.int64], encoded: Ragged, forced: list[Ids] | None) -> _Inputs:
        sources = [encoded[row] for row in rows]
        prefixes = None if forced is None else [forced[row] for row in rows]
        extra = np.array([len(prefix) for prefix in prefixes or [()] * len(rows)], dtype=np.int64)
        return _Inputs(rows, sources, prefixes, self._capped(self.max_lengths(sources) + extra))

    def _encode_prefixes(self, prefixes: Sequence[str], *, num_sources: int) -> list[Ids]:
        if isinstance(prefixes, str) or len(prefixes) != num_sources:
            raise ShapeError(f"prefixes: expected one text a source, {num_sources} in all, got {prefixes!r}")
        for number, prefix in enumerate(prefixes, start=1):
            unknown = UnknownSymbols.of_targets(self.codec)
            unknown.add(prefix, line=number)
            if unknown:
                raise VocabularyError(f"prefix {prefix!r}: {unknown.summary()}; the model cannot write it")
        return [row[:-1] for row in map(self.codec.encode_target, prefixes)]

    def _check_attention(self, need_attention: bool) -> None:
        if need_attention and getattr(self.config.model.decoder, "attention", None) == "none":
            raise ConfigError(f"{self.name} has no attention to show: it was trained with model.decoder.attention=none")

    def _without_search(self, sources: Sequence[str], encoded: Ragged) -> list[Prediction | None]:
        """The answers that are known before any search: to blank sources and to those that cannot be read."""
        answers: list[Prediction | None] = [NOTHING if self.codec.is_blank(source) else None for source in sources]
        for row in np.flatnonzero(symbol_lengths(encoded) > (self.source_limit or np.inf)):
            answers[row] = answers[row] or UNREADABLE
        return answers

    def score(self, pairs: Sequence[tuple[str, str]], features: Features | None = None) -> list[float]:
        """Compute ln P(target | source) of each pair in nats, the end symbol included.

        It is -inf where either side is longer than the model can read or write.
        """
        sources = self.encode([source for source, _ in pairs], features)
        targets = self.codec.encode_targets([target for _, target in pairs])
        rows = np.flatnonzero(self.is_within(sources, targets))
        batches = evaluation_batches(
            sources.lengths[rows], targets.lengths[rows], batch_tokens=BATCH_TOKENS, max_batch_size=BATCH_ROWS
        )
        found = [
            score(self.engine, [sources[i] for i in rows[batch]], [targets[i] for i in rows[batch]])
            for batch in batches
        ]
        scores = np.full(len(pairs), -math.inf)
        scores[rows] = [item.log_prob for item in in_order(batches, found)]
        return [float(value) for value in scores]

    def occlude(self, source: str, output: str, features: str | Sequence[str] = ()) -> NDArray[np.float64]:
        """How much each symbol of a source matters for an output, (S,) in nats.

        The drop of ln P(output | source) when the symbol is hidden: replaced by the unknown symbol. Unlike attention
        weights, which say where a model looks, this says what its answer rests on.
        """
        row = np.array(self.encode([source], [features] if features else None)[0])
        target = self.codec.encode_target(output)
        hidden = [np.where(np.arange(len(row)) == place, UNK, row) for place in range(len(row))]
        totals = [item.log_prob for item in score(self.engine, [row, *hidden], [target] * (len(row) + 1))]
        return np.array(totals[0] - np.array(totals[1:]), dtype=np.float64)

    def evaluate(self, test: DataFile | Pairs, *, beam: int | None = None, tokenise: str | None = None) -> Report:
        """Predict a file of pairs and measure what comes out; see `Report` and `inference.evaluation.evaluate`."""
        from unrolled.inference.evaluation import evaluate

        return evaluate(self, test, beam=beam, tokenise=tokenise)

    def inspect(
        self,
        sources: Sequence[str],
        features: Features | None = None,
        *,
        lines: Sequence[int] | None = None,
        notes: InputNotes | None = None,
    ) -> InputNotes:
        """What is unusual about these sources: symbols and features never seen in training, great lengths.

        Parameters
        ----------
        sources, features
            As for `predict`.
        lines : sequence of int, optional
            Where each source stands; none for one after the other.
        notes : InputNotes, optional
            Gathers the parts of a longer input.
        """
        notes = notes or self.notes()
        notes.add(sources, _split(features), self.encode(sources, features), lines=lines)
        return notes

    def notes(self) -> InputNotes:
        """Start a collection for an input that is inspected in parts."""
        trained = None if self.data is None else self.data.longest_source
        return InputNotes(self.codec, longest=trained or self.codec.data.source.max_length, limit=self.source_limit)

    def encode(self, sources: Sequence[str], features: Features | None = None) -> Ragged:
        """Ids of the sources, checked.

        Raises
        ------
        ShapeError
            If there is not one entry of features a source.
        VocabularyError
            If features are given to a model that has none.
        """
        if isinstance(sources, str):
            raise ShapeError("sources: expected a list of texts, got one text; put it in a list")
        if features is not None and len(features) != len(sources):
            raise ShapeError(f"features: expected one entry a source, {len(sources)}, got {len(features)}")
        if features is not None and self.codec.source.features is None and any(features):
            raise VocabularyError("features were given, but this model was trained without a features column")
        return self.codec.encode_sources(sources, _split(features))

    def max_lengths(self, rows: Sequence[Ids]) -> NDArray[np.int64]:
        """The greatest output length for each encoded source, end symbol included."""
        fixed = self.config.decoding.max_length
        return self._capped(np.array([fixed or 2 * _num_symbols(row) + 50 for row in rows], dtype=np.int64))

    def _capped(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """No longer than the model can write."""
        return lengths if self.target_limit is None else np.minimum(lengths, self.target_limit)

    def is_within(self, sources: Ragged, targets: Ragged) -> NDArray[np.bool_]:
        """Which encoded pairs the model can read and write."""
        is_readable = symbol_lengths(sources) <= (self.source_limit or np.inf)
        within: NDArray[np.bool_] = is_readable & (targets.lengths <= (self.target_limit or np.inf))
        return within

    def _search(self, inputs: _Inputs, beam: int, num_best: int, *, need_attention: bool) -> list[list[Hypothesis]]:
        penalty = self._penalty()
        if beam == 1 and self.config.decoding.length_penalty == "none":  # the same result, by a shorter way
            best = greedy(
                self.engine,
                inputs.sources,
                max_length=inputs.limits,
                prefixes=inputs.prefixes,
                need_attention=need_attention,
            )
            return [[item] for item in best]
        return beam_search(
            self.engine,
            inputs.sources,
            max_length=inputs.limits,
            beam=beam,
            num_best=num_best,
            penalty=penalty,
            prefixes=inputs.prefixes,
            need_attention=need_attention,
        )

    def _penalty(self) -> LengthPenalty:
        return LengthPenalty(self.config.decoding.length_penalty, self.config.decoding.alpha)

    def _distinct(self, source: Ids, items: Sequence[Hypothesis]) -> list[Prediction]:
        predictions: dict[str, Prediction] = {}
        for item in items:
            prediction = self._prediction(source, item)
            predictions.setdefault(prediction.text, prediction)  # two spellings of one text: the better one stays
        return list(predictions.values())

    def _prediction(self, source: Ids, item: Hypothesis) -> Prediction:
        ids = [*item.ids, EOS] if item.is_finished else item.ids
        return Prediction(
            text=self.codec.decode_target(item.ids),
            log_prob=item.log_prob,
            score=item.score,
            is_finished=item.is_finished,
            source_symbols=tuple(self.codec.source_symbols(source)),
            target_symbols=tuple(self.codec.target_symbols(ids)),
            attention=item.attention,
        )


class _Inputs(NamedTuple):
    """Sources that are answered together, which rows they are, their forced prefixes and greatest output lengths."""

    rows: NDArray[np.int64]
    sources: Sequence[Ids]
    prefixes: Sequence[Ids] | None
    limits: NDArray[np.int64]


def _split(features: Features | None) -> list[tuple[str, ...]] | None:
    if features is None:
        return None
    return [split_features(entry) if isinstance(entry, str) else tuple(entry) for entry in features]


def _num_symbols(row: Ids) -> int:
    """Symbols of an encoded source, without its end symbol and features."""
    return int(np.argmax(row == EOS))
