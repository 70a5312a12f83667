"""Search along one path a source: greedy decoding and sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from unrolled.decoding.constraints import Prefixes, length_limits
from unrolled.decoding.engine import BANNED, Engine, Stepper
from unrolled.decoding.hypothesis import Hypothesis, LengthPenalty
from unrolled.errors import ConfigError, ShapeError
from unrolled.next_symbol import FloatArray, IntArray, SamplingPolicy, check_log_probs
from unrolled.text.vocabulary import EOS, PAD

__all__ = ["greedy", "sample"]

Choose = Callable[[Stepper, IntArray, int], tuple[IntArray, FloatArray]]
"""(stepper, sources that its rows belong to, step from 0) -> the next id of each row and its ln P."""


def greedy(
    engine: Engine,
    sources: Sequence[IntArray],
    *,
    max_length: int | IntArray,
    penalty: LengthPenalty | None = None,
    prefixes: Sequence[IntArray] | None = None,
    banned: Sequence[int] = BANNED,
    need_attention: bool = False,
) -> list[Hypothesis]:
    """The most probable symbol at each step, ties by lower id.

    Parameters
    ----------
    engine : Engine
    sources : sequence of 1-d id arrays
    max_length : int or (B,) array
        Longest output, EOS included.
    penalty : LengthPenalty, optional
        Only for the scores that are reported; none for `log_prob` itself.
    prefixes : sequence of 1-d id arrays, optional
        What each output is forced to begin with; forced symbols count in `log_prob`.
    banned : sequence of int
        Ids that are never generated.
    need_attention : bool
        Whether hypotheses carry their attention.

    Returns
    -------
    list of Hypothesis
        One a source, in their order.

    Raises
    ------
    ConfigError, ShapeError, VocabularyError
        If a limit or a prefix makes no sense.
    DivergenceError
        If the model answers NaN.
    """

    def best(stepper: Stepper, _active: IntArray, _step: int) -> tuple[IntArray, FloatArray]:
        ids, log_probs = stepper.top_k(1, banned)  # (R, 1)
        return ids[:, 0], log_probs[:, 0]

    rollout = _Rollout(engine, sources, max_length=max_length, prefixes=prefixes, need_attention=need_attention)
    return rollout.run(best, penalty or LengthPenalty())


def sample(
    engine: Engine,
    sources: Sequence[IntArray],
    *,
    max_length: int | IntArray,
    seed: int,
    lines: Sequence[int] | None = None,
    draw: int = 0,
    policy: SamplingPolicy | None = None,
    min_length: int = 1,
    penalty: LengthPenalty | None = None,
    prefixes: Sequence[IntArray] | None = None,
    banned: Sequence[int] = BANNED,
    need_attention: bool = False,
) -> list[Hypothesis]:
    """One output a source, each symbol drawn from the filtered distribution.

    Each source has its own generator, seeded by `(seed, line, draw)`, and step t uses its t-th number: an output
    depends neither on its neighbours nor on its batch. `log_prob` is that of the unfiltered model.

    Parameters
    ----------
    engine, sources, max_length, penalty, prefixes, banned, need_attention
        As for `greedy`.
    seed : int
        0 or more.
    lines : sequence of int, optional
        What tells the sources apart, 0 or more; none for 0, 1, 2, …
    draw : int
        What tells several outputs of one source apart, 0 or more.
    policy : SamplingPolicy, optional
        Temperature, top-k, top-p; none for the model's own distribution.
    min_length : int
        Shortest output, EOS included; before it EOS is not drawn.

    Returns
    -------
    list of Hypothesis
        One a source, in their order.

    Raises
    ------
    ConfigError, ShapeError, VocabularyError
        If a limit or a prefix makes no sense.
    DivergenceError
        If the model answers NaN.
    """
    policy = replace(policy or SamplingPolicy(), banned=tuple(banned))
    early = replace(policy, banned=(*policy.banned, EOS))
    rollout = _Rollout(engine, sources, max_length=max_length, prefixes=prefixes, need_attention=need_attention)
    if not 1 <= min_length <= rollout.limits.min(initial=min_length):
        raise ConfigError(f"min_length must be from 1 to max_length, got {min_length}")
    lines = range(len(sources)) if lines is None else lines
    uniforms = _uniforms(lines, rollout.limits, seed=seed, draw=draw)

    def drawn(stepper: Stepper, active: IntArray, step: int) -> tuple[IntArray, FloatArray]:
        ids = stepper.sample(early if step + 1 < min_length else policy, uniforms[active, step])
        return ids, stepper.log_prob_of(ids)

    return rollout.run(drawn, penalty or LengthPenalty())


def _uniforms(lines: Sequence[int], limits: IntArray, *, seed: int, draw: int) -> FloatArray:
    """Numbers in [0, 1), `(B, longest)`: row i depends on `(seed, lines[i], draw)` alone."""
    if len(lines) != len(limits):
        raise ShapeError(f"lines: expected one number a source, {len(limits)} in all, got {len(lines)}")
    uniforms = np.zeros((len(limits), limits.max(initial=0)))
    for row, line, limit in zip(uniforms, lines, limits, strict=True):
        row[:limit] = np.random.default_rng((seed, line, draw)).random(limit)
    return uniforms


class _Rollout:
    """One path a source; sources leave the batch as they finish."""

    def __init__(
        self,
        engine: Engine,
        sources: Sequence[IntArray],
        *,
        max_length: int | IntArray,
        prefixes: Sequence[IntArray] | None,
        need_attention: bool,
    ) -> None:
        self.engine, self.sources, self.need_attention = engine, sources, need_attention
        self.limits = length_limits(max_length, len(sources))
        self.prefixes = Prefixes(prefixes, num_sources=len(sources), vocabulary_size=engine.vocabulary_size)

    def run(self, choose: Choose, penalty: LengthPenalty) -> list[Hypothesis]:
        if not self.sources:
            return []
        stepper = self.engine.start(self.sources, need_attention=self.need_attention)
        active = np.arange(len(self.sources))
        log_prob = np.zeros(len(self.sources))
        steps: list[tuple[IntArray, IntArray]] = []  # (sources, their ids)
        attention: list[FloatArray] = []
        for step in range(self.limits.max()):
            ids, added = self._forced(stepper, active, step, *choose(stepper, active, step))
            check_log_probs(added)
            log_prob[active] += added
            steps.append((active, ids))
            if self.need_attention:
                attention.append(stepper.attention())
            going = np.flatnonzero((ids != EOS) & (step + 1 < self.limits[active]))
            if not going.size:
                break
            if going.size < active.size:
                stepper.select(going, going)
            active = active[going]
            stepper.advance(ids[going])
        return self._hypotheses(steps, log_prob, attention, penalty)

    def _forced(
        self, stepper: Stepper, active: IntArray, step: int, ids: IntArray, log_probs: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """The choice, with what a prefix forces put in its place."""
        given = self.prefixes.at(step, active)
        if given is None:
            return ids, log_probs
        ids = np.where(given != PAD, given, ids)
        return ids, np.where(given != PAD, stepper.log_prob_of(ids), log_probs)

    def _hypotheses(
        self,
        steps: list[tuple[IntArray, IntArray]],
        log_prob: FloatArray,
        attention: list[FloatArray],
        penalty: LengthPenalty,
    ) -> list[Hypothesis]:
        symbols = np.full((len(self.sources), len(steps)), PAD, dtype=np.int64)
        lengths = np.zeros(len(self.sources), dtype=np.int64)
        for step, (active, ids) in enumerate(steps):
            symbols[active, step] = ids
            lengths[active] += 1
        is_finished = symbols[np.arange(len(lengths)), lengths - 1] == EOS
        scores = log_prob / penalty(lengths)
        maps = self._attention(steps, attention)
        return [
            Hypothesis(
                ids=symbols[i, : lengths[i] - is_finished[i]],
                log_prob=float(log_prob[i]),
                score=float(scores[i]),
                is_finished=bool(is_finished[i]),
                attention=maps[i] if maps else None,
            )
            for i in range(len(lengths))
        ]

    def _attention(self, steps: list[tuple[IntArray, IntArray]], attention: list[FloatArray]) -> list[FloatArray]:
        rows: list[list[FloatArray]] = [[] for _ in self.sources]
        for (active, _), weights in zip(steps, attention, strict=False):
            for source, row in zip(active, weights, strict=True):
                rows[source].append(row[: len(self.sources[source])])
        return [np.stack(row) for row in rows if row]
