"""The softmax over a large vocabulary, estimated in training from the frequent symbols and a sample of the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unrolled import config
from unrolled.text import PAD, Tokens
from unrolled.text.chance import uniforms

__all__ = ["Classes", "SampledSoftmax"]

_COUNTED = 1 << 22  # symbols of a text that are counted at once
_USE = 5  # tells these draws from others of the same seed


class Classes(NamedTuple):
    """The K classes whose logits a batch needs: those of the sample, and its labels.

    `ids` (K,) ascends and begins with `PAD`; `log_weight` (K,) is −ln π, and −inf for labels that are not in the
    sample; `columns` (B, T) is where each label stands among the classes.
    """

    ids: Tensor
    log_weight: Tensor
    columns: Tensor

    def to(self, device: torch.device) -> Classes:
        """The same on a device."""
        return Classes(*(part.to(device) for part in self))

    def weighted(self, logits: Tensor) -> Tensor:
        """Logits (B, T, K) whose softmax estimates the one over all classes: each 1 / π times, the label once."""
        columns, weighted = self.columns.unsqueeze(-1), logits + self.log_weight
        return weighted.scatter_(-1, columns, logits.gather(-1, columns).type_as(weighted))


class SampledSoftmax:
    """Poisson samples of classes, in which a class v is with probability π_v, independently of all others.

    ::

        Z = exp(z_y) + sum over v in the sample, v ≠ y, of exp(z_v) / pi_v,      pi_v = min(1, c · sqrt(n_v + 1))

    is the estimate of Horvitz & Thompson (1952) of sum_v exp(z_v): without bias, for every row by itself. n_v counts v
    in the training text, and c makes the expected size of a sample what is asked for; so the most frequent classes are
    always there. The loss −ln(exp(z_y) / Z) is a little low on average, since ln is concave; importance sampling of a
    softmax goes back to Bengio & Senécal (2003).

    Parameters
    ----------
    counts : int array (V,)
        How often each symbol occurs.
    size : int
        Expected number of classes in a sample, from 2 to V − 1; `PAD` is always one of them. Labels come on top.
    seed : int
        A sample is a function of this and of the step.
    """

    @classmethod
    def of_text(cls, tokens: Tokens, settings: config.Training, *, num_symbols: int) -> SampledSoftmax | None:
        """For a training text (N,), counted in pieces; none where it would take all symbols."""
        if settings.softmax_sample is None or settings.softmax_sample >= num_symbols:
            return None
        counts = np.zeros(num_symbols, np.int64)
        for first in range(0, len(tokens), _COUNTED):
            counts += np.bincount(tokens[first : first + _COUNTED], minlength=num_symbols)
        return cls(counts, settings.softmax_sample, seed=settings.seed)

    def __init__(self, counts: NDArray[np.int64], size: int, *, seed: int) -> None:
        self._inclusion = np.ones(len(counts))
        self._inclusion[PAD + 1 :] = _inclusion(np.sqrt(counts[PAD + 1 :] + 1.0), size - 1)
        self._seed = seed

    def classes(self, labels: NDArray[np.int64], *, step: int) -> Classes:
        """Those of a batch with these labels (B, T)."""
        draws = uniforms(_USE, self._seed, rows=np.array([step]), count=len(self._inclusion))
        is_sampled = draws[0] < self._inclusion
        is_needed = is_sampled.copy()
        is_needed[labels] = True
        ids = np.flatnonzero(is_needed)
        log_weight = np.where(is_sampled[ids], -np.log(self._inclusion[ids]), -np.inf)
        columns = np.cumsum(is_needed)[labels] - 1
        return Classes(torch.from_numpy(ids), torch.from_numpy(log_weight).float(), torch.from_numpy(columns))


def _inclusion(weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Probabilities min(1, c w) that sum to `size`, which is less than their number."""
    ordered = np.sort(weights)[::-1]
    rest = np.cumsum(ordered[::-1])[::-1]  # of all classes from this one on
    whole = np.arange(size)  # so many are certain
    factors = (size - whole) / rest[:size]
    certain = int(np.argmax(factors * ordered[:size] < 1.0))
    inclusion: NDArray[np.float64] = np.minimum(1.0, factors[certain] * weights)
    return inclusion
