"""Which pairs ask the same question: grouping by source and features, holding sources out, finding leaks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from unrolled.text.normal_form import NormalForm, recompose
from unrolled.text.pairs import Pairs

__all__ = ["group_ids", "hold_out", "seen_sources", "source_keys"]


def source_keys(pairs: Pairs, *, normal_form: NormalForm = "NFC") -> list[Hashable]:
    """What a model sees of each pair: its source in normal form and the set of its features, whatever their order."""
    texts = [recompose(source, normal_form) for source in pairs.sources]
    if pairs.features is None:
        return list(texts)
    sets = {names: frozenset(names) for names in set(pairs.features)}
    return [(text, sets[names]) for text, names in zip(texts, pairs.features, strict=True)]


def group_ids(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """A number for each distinct key, counted in the order of first appearance, (N,)."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def seen_sources(train: Pairs, test: Pairs, *, normal_form: NormalForm = "NFC") -> NDArray[np.bool_]:
    """Whether each test source, with its features, occurs in the training pairs, (N,)."""
    known = set(source_keys(train, normal_form=normal_form))
    return np.array([key in known for key in source_keys(test, normal_form=normal_form)], dtype=np.bool_)


def hold_out(
    groups: NDArray[np.int64], *, fraction: float, limit: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows into training and dev rows, a group always on one side.

    Parameters
    ----------
    groups : int64 array (N,)
        Numbers from 0 of what must stay together; see `group_ids`.
    fraction : float
        Share of the groups that is held out: rounded, at least one, at most all but one.
    limit : int
        Most groups that are held out.
    seed : int

    Returns
    -------
    two int64 arrays
        Rows in file order; the second is empty only if there are fewer than two groups.
    """
    num_groups = int(groups.max(initial=-1)) + 1
    num_held_out = min(max(1, round(fraction * num_groups)), limit, max(0, num_groups - 1))
    is_held_out = np.zeros(num_groups, dtype=np.bool_)
    is_held_out[np.random.default_rng(seed).permutation(num_groups)[:num_held_out]] = True
    return np.flatnonzero(~is_held_out[groups]), np.flatnonzero(is_held_out[groups])
