"""What a model thinks of given outputs."""

from __future__ import annotations

from collections.abc import Sequence

from unrolled.decoding.engine import Engine
from unrolled.decoding.hypothesis import Hypothesis, LengthPenalty
from unrolled.errors import ShapeError
from unrolled.next_symbol import IntArray
from unrolled.text.vocabulary import EOS

__all__ = ["score"]


def score(
    engine: Engine,
    sources: Sequence[IntArray],
    targets: Sequence[IntArray],
    *,
    penalty: LengthPenalty | None = None,
) -> list[Hypothesis]:
    """Each target as the hypothesis that a search would have made of it.

    Parameters
    ----------
    engine : Engine
    sources : sequence of 1-d id arrays
    targets : sequence of 1-d id arrays
        One a source, at least one id each. Those that end with EOS are finished; the others are scored as beginnings.
    penalty : LengthPenalty, optional
        How `score` is normalised; none for `log_prob` itself.

    Returns
    -------
    list of Hypothesis
        One a pair, in their order; `log_prob` agrees with that of search to float32 rounding (1e-5).

    Raises
    ------
    ShapeError
        If there is not one target a source, or a target is empty.
    """
    if len(sources) != len(targets):
        raise ShapeError(f"score: expected one target a source, {len(sources)} in all, got {len(targets)}")
    for pair, target in enumerate(targets, start=1):
        if not len(target):
            raise ShapeError(f"score: target {pair} is empty; the empty output is one EOS")
    return [
        _hypothesis(target, float(log_probs.sum(dtype="float64")), penalty or LengthPenalty())
        for target, log_probs in zip(targets, engine.log_probs(sources, targets), strict=True)
    ]


def _hypothesis(target: IntArray, log_prob: float, penalty: LengthPenalty) -> Hypothesis:
    is_finished = bool(target[-1] == EOS)
    return Hypothesis(
        ids=target[: len(target) - is_finished],
        log_prob=log_prob,
        score=log_prob / float(penalty(len(target))),
        is_finished=is_finished,
    )
