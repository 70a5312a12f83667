"""Beam search.

Notation, with the batch's sources dealt with at once by array operations: A sources are still searched, each with
r open items, the rows of the stepper; c candidates a row make r · c extensions a source, of which at most k (the beam)
stay open. `length` counts the symbols of an extension, EOS included, BOS not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unrolled.decoding.constraints import Prefixes, length_limits
from unrolled.decoding.engine import BANNED, Engine, Stepper
from unrolled.decoding.hypothesis import Hypothesis, LengthPenalty
from unrolled.decoding.trellis import Trellis
from unrolled.errors import ConfigError
from unrolled.next_symbol import FloatArray, IntArray, check_log_probs
from unrolled.text.vocabulary import EOS, PAD

__all__ = ["beam_search"]

ENTRY = np.dtype([("score", "f8"), ("log_prob", "f8"), ("is_finished", "?"), ("length", "i8"), ("row", "i8")])
"""A result as search remembers it: the row that it was in after `length` symbols, EOS not among them."""


def beam_search(
    engine: Engine,
    sources: Sequence[IntArray],
    *,
    max_length: int | IntArray,
    beam: int = 5,
    num_best: int = 1,
    penalty: LengthPenalty | None = None,
    prefixes: Sequence[IntArray] | None = None,
    banned: Sequence[int] = BANNED,
    need_attention: bool = False,
) -> list[list[Hypothesis]]:
    """The best outputs that a beam finds, best first.

    Each step keeps the `beam` best extensions, ended ones included; ended ones leave the beam, which is refilled
    from the next best open ones. A source is done when its `num_best`-th finished score is at least what any open
    item can still reach, `log_prob / lp(max_length)`. Ties go to the lower row, then to the lower id. With `beam=1`
    and no length penalty this is greedy decoding.

    Parameters
    ----------
    engine, sources, max_length, prefixes, banned, need_attention
        As for `greedy`.
    beam : int
        At least 1; may exceed the vocabulary.
    num_best : int
        From 1 to `beam`; how many outputs a source gets. There are fewer only where no more exist.
    penalty : LengthPenalty, optional
        How scores are normalised; none for `log_prob` itself.

    Returns
    -------
    list of list of Hypothesis
        For each source its distinct outputs: finished ones by score, then those cut at `max_length` by score.

    Raises
    ------
    ConfigError, ShapeError, VocabularyError
        If a limit or a prefix makes no sense.
    DivergenceError
        If the model answers NaN.
    """
    if not 1 <= num_best <= beam:
        raise ConfigError(f"beam search needs 1 <= num_best <= beam, got num_best {num_best} and beam {beam}")
    search = _Search(
        limits=length_limits(max_length, len(sources)),
        prefixes=Prefixes(prefixes, num_sources=len(sources), vocabulary_size=engine.vocabulary_size),
        beam=beam,
        num_best=num_best,
        penalty=penalty or LengthPenalty(),
        banned=banned,
        need_attention=need_attention,
    )
    if not sources:
        return []
    stepper, width = engine.start(sources, need_attention=need_attention), min(beam + 1, engine.vocabulary_size)
    length = 0
    while search.active.size:
        length += 1
        search.extend(stepper, length, width)
    return search.hypotheses(sources)


class _Search:
    """The items of all sources: open ones as rows of the stepper, results as entries, the way to both in a trellis."""

    def __init__(
        self,
        *,
        limits: IntArray,
        prefixes: Prefixes,
        beam: int,
        num_best: int,
        penalty: LengthPenalty,
        banned: Sequence[int],
        need_attention: bool,
    ) -> None:
        self.limits, self.prefixes, self.banned = limits, prefixes, banned
        self.beam, self.penalty, self.need_attention = beam, penalty, need_attention
        self.trellis = Trellis(len(limits))
        self.results = np.zeros((len(limits), num_best), dtype=ENTRY)
        self.results["score"] = -np.inf
        self.active: IntArray = np.arange(len(limits))  # (A,) sources that are not done
        self.open_log_prob: FloatArray = np.zeros((len(limits), 1))  # (A, r)

    def extend(self, stepper: Stepper, length: int, width: int) -> None:
        """One step: every open item grows to `length` symbols, by one of the `width` best of its row."""
        forced = self.prefixes.at(length - 1, self.active)
        best = _extensions(stepper, self.open_log_prob, width, self.banned, forced)
        opened = best.opened(self.beam)
        attention = stepper.attention() if self.need_attention else None
        self.trellis.record(self.active, opened.parent, opened.symbol, attention=attention)
        is_last = self.limits[self.active] == length
        self._keep(best.ended(self.beam, self.penalty, length), opened.cut(is_last, self.penalty, length))
        reachable = opened.log_prob[:, 0] / self.penalty(self.limits[self.active])
        self._go_on(stepper, opened, ~is_last & (self.results["score"][self.active, -1] < reachable))

    def _keep(self, *found: NDArray[Any]) -> None:
        """Merge new entries into the results of the active sources."""
        entries = np.concatenate([self.results[self.active], *found], axis=1)
        self.results[self.active] = _ranked(entries)[:, : self.results.shape[1]]

    def _go_on(self, stepper: Stepper, opened: _Extensions, is_going: NDArray[np.bool_]) -> None:
        """Feed the open items of the sources that are not done; the others leave the batch."""
        going = np.flatnonzero(is_going)
        if going.size:
            rows = going[:, None] * self.open_log_prob.shape[1] + opened.parent[going]  # (A, k)
            stepper.select(rows.ravel(), going if going.size < is_going.size else None)
            stepper.advance(opened.symbol[going].ravel())
        self.active, self.open_log_prob = self.active[going], opened.log_prob[going]

    def hypotheses(self, sources: Sequence[IntArray]) -> list[list[Hypothesis]]:
        """The results of each source with the symbols that led to them."""
        owner, place = np.nonzero(self.results["score"] > -np.inf)
        entries = self.results[owner, place]
        symbols, rows = self.trellis.trace(owner, entries["length"], entries["row"])
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for i, source in enumerate(owner.tolist()):
            length, is_finished = int(entries["length"][i]), bool(entries["is_finished"][i])
            attention = None
            if self.need_attention:
                attention = self.trellis.attention(source, rows[i, : length + is_finished])[:, : len(sources[source])]
            found[source].append(
                Hypothesis(
                    ids=symbols[i, :length],
                    log_prob=float(entries["log_prob"][i]),
                    score=float(entries["score"][i]),
                    is_finished=is_finished,
                    attention=attention,
                )
            )
        return found


class _Extensions(NamedTuple):
    """Items with one more symbol, `(A, n)` each, best first."""

    log_prob: FloatArray
    parent: IntArray
    symbol: IntArray

    def opened(self, beam: int) -> _Extensions:
        """The first `beam` that did not end; where there are fewer, the rest is impossible."""
        has_ended = self.symbol == EOS
        order = np.argsort(has_ended, axis=1, kind="stable")[:, :beam]
        log_prob = np.where(has_ended, -np.inf, self.log_prob)
        return _Extensions(*(np.take_along_axis(values, order, axis=1) for values in (log_prob, *self[1:])))

    def ended(self, beam: int, penalty: LengthPenalty, length: int) -> NDArray[Any]:
        """Those among the first `beam` that ended, as entries; the others' score is -inf."""
        has_ended = self.symbol[:, :beam] == EOS
        log_prob = np.where(has_ended, self.log_prob[:, :beam], -np.inf)
        entries = _entries(log_prob, penalty, length)
        entries["is_finished"] = np.isfinite(log_prob)
        entries["length"], entries["row"] = length - 1, self.parent[:, :beam]
        return entries

    def cut(self, is_last: NDArray[np.bool_], penalty: LengthPenalty, length: int) -> NDArray[Any]:
        """All of the sources that may not grow any more, as unfinished entries; the others' score is -inf."""
        entries = _entries(np.where(is_last[:, None], self.log_prob, -np.inf), penalty, length)
        entries["length"], entries["row"] = length, np.arange(self.log_prob.shape[1])
        return entries


def _entries(log_prob: FloatArray, penalty: LengthPenalty, length: int) -> NDArray[Any]:
    entries = np.zeros(log_prob.shape, dtype=ENTRY)
    entries["log_prob"], entries["score"] = log_prob, log_prob / penalty(length)
    return entries


def _extensions(
    stepper: Stepper, open_log_prob: FloatArray, width: int, banned: Sequence[int], given: IntArray | None
) -> _Extensions:
    """All extensions that can matter, best first, ties by lower row, then by lower id."""
    symbols, added = stepper.top_k(width, banned)  # (A·r, c)
    check_log_probs(added)
    num_sources, num_rows = open_log_prob.shape
    if given is not None:
        symbols, added = _forced(stepper, symbols, added, np.repeat(given, num_rows))
    log_prob = (open_log_prob.reshape(-1, 1) + added).reshape(num_sources, -1)  # (A, r·c)
    order = np.argsort(-log_prob, axis=1, kind="stable")
    return _Extensions(
        np.take_along_axis(log_prob, order, axis=1),
        order // added.shape[1],
        np.take_along_axis(symbols.reshape(num_sources, -1), order, axis=1),
    )


def _forced(stepper: Stepper, symbols: IntArray, added: FloatArray, given: IntArray) -> tuple[IntArray, FloatArray]:
    """Where a row is given its symbol (PAD: it is free), that is its only extension."""
    is_forced = given != PAD
    symbols, added = symbols.copy(), added.copy()
    symbols[:, 0] = np.where(is_forced, given, symbols[:, 0])
    log_prob = stepper.log_prob_of(symbols[:, 0])
    check_log_probs(log_prob)
    added[is_forced] = -np.inf
    added[:, 0] = np.where(is_forced, log_prob, added[:, 0])
    return symbols, added


def _ranked(entries: NDArray[Any]) -> NDArray[Any]:
    """Each row sorted: finished before unfinished, then by score; impossible ones last."""
    order = np.lexsort((-entries["score"], ~entries["is_finished"]), axis=1)
    ranked: NDArray[Any] = np.take_along_axis(entries, order, axis=1)
    return ranked
