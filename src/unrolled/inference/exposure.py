"""How much worse a model predicts after its own symbols than after the true ones.

Teacher forcing shows a model true prefixes only; in use it reads what it wrote itself. With ŷ_t the most probable
symbol,

    gap(t) = P(ŷ_t ≠ y_t | own prefix) − P(ŷ_t ≠ y_t | true prefix),   t up to the true length, end symbol included.

For the accuracy of whole sequences the gap is 0 by construction: the first error decides. The symbol error rate of free
running, by edit distance, tells what the errors are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from unrolled.decoding import BANNED, Engine, greedy
from unrolled.text import EOS, PAD, evaluation_batches, in_order, pad_rows

__all__ = ["ExposureGap", "exposure_gap"]

BATCH_ROWS, BATCH_TOKENS = 512, 1 << 15
Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class ExposureGap:
    """Wrong symbols at each place t, counted over targets that are so long.

    Attributes
    ----------
    own, true : (T,) int64 arrays
        Wrong symbols after the model's own prefix and after the true prefix.
    num_labels : (T,) int64 array
        Targets that have a t-th symbol.
    symbol_error_rate : float
        Of free running: edits per symbol of the target.
    """

    own: NDArray[np.int64]
    true: NDArray[np.int64]
    num_labels: NDArray[np.int64]
    symbol_error_rate: float

    @property
    def gap(self) -> float:
        """Mean gap over all symbols, from -1 to 1."""
        return float((self.own.sum() - self.true.sum()) / self.num_labels.sum())

    def to_json(self) -> dict[str, Any]:
        """Plain values; counts by place."""
        return {
            "gap": self.gap,
            "own_prefix": self.own.tolist(),
            "true_prefix": self.true.tolist(),
            "num_labels": self.num_labels.tolist(),
            "symbol_error_rate": self.symbol_error_rate,
        }

    def lines(self) -> list[str]:
        """A report for people, one string a line; places beyond the tenth together."""
        return [
            "",
            "exposure gap, greedy: share of wrong symbols after its own prefix, after the true prefix, difference",
            f"  {'all':>7}  {self._rates(0, len(self.own))}",
            *(f"  {_name(start, stop):>7}  {self._rates(start, stop)}" for start, stop in _places(len(self.own))),
            f"  symbol errors of free running {100 * self.symbol_error_rate:.2f} %",
        ]

    def _rates(self, start: int, stop: int) -> str:
        num_labels = self.num_labels[start:stop].sum()
        own, true = (100 * wrong[start:stop].sum() / num_labels for wrong in (self.own, self.true))
        return f"{own:6.2f} %  {true:6.2f} %  {own - true:+6.2f} %  of {num_labels}"


def exposure_gap(engine: Engine, sources: Sequence[Ids], targets: Sequence[Ids], *, limits: Ids) -> ExposureGap:
    """Measure the gap on pairs of ids, greedily both ways.

    Parameters
    ----------
    engine : Engine
    sources, targets : sequences of id arrays
        As the codec makes them; targets end with `EOS`. At least one.
    limits : (N,) int64 array
        Greatest length of each output, end symbol included.
    """
    lengths = np.array([len(target) for target in targets])
    batches = evaluation_batches(
        np.array([len(source) for source in sources]), lengths, batch_tokens=BATCH_TOKENS, max_batch_size=BATCH_ROWS
    )
    own, forced = [], []
    for batch in batches:
        chosen = [sources[i] for i in batch]
        own.append(greedy(engine, chosen, max_length=limits[batch]))
        forced.append(_after_true_prefixes(engine, chosen, [targets[i] for i in batch]))
    free = in_order(batches, own)
    written = [np.append(item.ids, EOS) if item.is_finished else item.ids for item in free]
    labels, is_label = pad_rows(targets, fill=PAD)  # (N, T)
    edits = sum(
        Levenshtein.distance(target[:-1].tolist(), item.ids.tolist())
        for target, item in zip(targets, free, strict=True)
    )
    return ExposureGap(
        own=((_beside(written, labels) != labels) & is_label).sum(axis=0),
        true=((_beside(in_order(batches, forced), labels) != labels) & is_label).sum(axis=0),
        num_labels=is_label.sum(axis=0),
        symbol_error_rate=edits / max(1, int(lengths.sum()) - len(targets)),
    )


def _after_true_prefixes(engine: Engine, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Ids]:
    """The most probable symbol at each place of the targets, each after the true symbols before it."""
    labels, _ = pad_rows(targets, fill=PAD)  # (B, T)
    lengths = np.array([len(target) for target in targets])
    guesses = np.full_like(labels, PAD)
    stepper, active = engine.start(sources), np.arange(len(sources))
    for place in range(labels.shape[1]):
        guesses[active, place] = stepper.top_k(1, BANNED)[0][:, 0]
        going = np.flatnonzero(lengths[active] > place + 1)
        if not going.size:
            break
        if going.size < active.size:
            stepper.select(going, going)
            active = active[going]
        stepper.advance(labels[active, place])
    return [row[:length] for row, length in zip(guesses, lengths, strict=True)]


def _beside(rows: Sequence[Ids], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows cut or filled to the places of the labels."""
    places = np.full_like(labels, PAD)
    for place, row in zip(places, rows, strict=True):
        kept = row[: len(place)]
        place[: len(kept)] = kept
    return places


def _places(longest: int) -> list[tuple[int, int]]:
    """Cut the places into 1, 2, 3, 4, then wider and wider groups: 5–8, 9–16, 17–32 and so on."""
    ends = [1, 2, 3, 4]
    while ends[-1] < longest:
        ends.append(2 * ends[-1])
    edges = [0, *(min(end, longest) for end in ends)]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


def _name(start: int, stop: int) -> str:
    return f"{start + 1}" if stop == start + 1 else f"{start + 1}–{stop}"
