"""Which examples share a batch: similar lengths together, under a budget of padded tokens.

With B rows, a batch costs `B · (max S + max T)` positions. Examples are sorted by length, cut where the next one would
break the budget, and the batches are shuffled, so that little is padding and every epoch is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["evaluation_batches", "in_order", "padding_share", "plan_batches"]

Result = TypeVar("Result")


def plan_batches(
    source_lengths: NDArray[Any],
    target_lengths: NDArray[Any],
    *,
    batch_tokens: int,
    max_batch_size: int,
    seed: int,
    epoch: int,
) -> list[NDArray[np.int64]]:
    """Batches of one epoch, shuffled: a function of the lengths, `seed` and `epoch` alone.

    Parameters
    ----------
    source_lengths, target_lengths : int arrays (N,)
        Symbols of each row, end symbols and features included.
    batch_tokens : int
        Most padded positions of a batch, `B · (max S + max T)`; an example longer than that is alone in its batch.
    max_batch_size : int
        Most examples of a batch.

    Returns
    -------
    list of int64 arrays
        Indices of the examples; each example is in exactly one batch and no batch is empty.
    """
    generator = np.random.default_rng([seed, epoch])
    source, target = np.asarray(source_lengths, np.int64), np.asarray(target_lengths, np.int64)
    chance = generator.random(len(source))
    plans = [
        _cut(order, source, target, batch_tokens, max_batch_size) for order in _orders(source, target, ties=chance)
    ]
    batches = min(plans, key=lambda plan: padding_share(plan, source, target))
    return [batches[place] for place in generator.permutation(len(batches))]


def _orders(
    source: NDArray[np.int64], target: NDArray[np.int64], *, ties: NDArray[np.float64]
) -> list[NDArray[np.int64]]:
    """Orders that keep similar pairs together: by source length, or, better for few pairs, by the longer side.

    The second length goes up and down by turns, so that a batch that spans two first lengths spans one second.
    """
    orders = []
    for first, second in ((source, target), (np.maximum(source, target), source)):
        by_turns = np.where(first % 2 == 0, second, -second)
        orders.append(np.lexsort((ties, by_turns, first)))
    return orders


def evaluation_batches(
    source_lengths: NDArray[Any],
    target_lengths: NDArray[Any] | None = None,
    *,
    batch_tokens: int,
    max_batch_size: int,
) -> list[NDArray[np.int64]]:
    """Batches without chance, longest first (what does not fit in memory fails at once); `in_order` undoes it."""
    source = np.asarray(source_lengths, np.int64)
    target = np.zeros_like(source) if target_lengths is None else np.asarray(target_lengths, np.int64)
    order = np.lexsort((target, source))[::-1]
    return _cut(order, source, target, batch_tokens, max_batch_size)


def _cut(
    order: NDArray[np.int64],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    batch_tokens: int,
    max_batch_size: int,
) -> list[NDArray[np.int64]]:
    """Cut the order into the longest runs within the budget."""
    batches = []
    sizes = np.arange(1, max_batch_size + 1)
    while order.size:
        window = order[:max_batch_size]
        longest = np.maximum.accumulate(source[window]) + np.maximum.accumulate(target[window])
        size = max(1, int(np.searchsorted(sizes[: window.size] * longest, batch_tokens, side="right")))
        batches.append(order[:size])
        order = order[size:]
    return batches


def in_order(batches: Sequence[NDArray[np.int64]], results: Sequence[Sequence[Result]]) -> list[Result]:
    """Results of batches, one a row, in the order of the examples."""
    flat = [result for batch in results for result in batch]
    if not flat:
        return []
    return [flat[place] for place in np.argsort(np.concatenate(batches)).tolist()]


def padding_share(
    batches: Sequence[NDArray[np.int64]], source_lengths: NDArray[Any], target_lengths: NDArray[Any]
) -> float:
    """Share of the positions of all batches that is padding."""
    both = (np.asarray(source_lengths), np.asarray(target_lengths))
    positions = sum(len(batch) * sum(int(lengths[batch].max()) for lengths in both) for batch in batches)
    real = sum(int(lengths.sum()) for lengths in both)
    return 1 - real / positions if positions else 0.0
