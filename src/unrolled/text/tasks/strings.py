"""Copy, reverse and sort: strings of symbols to strings of the same symbols.

Axes: N examples, L longest string. Texts are rows of code points, zero after the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unrolled import config
from unrolled.text.tasks.blind import Blind

__all__ = ["Strings"]

StringTask = config.CopyTask | config.ReverseTask | config.SortTask
Codes = NDArray[np.uint32]


class Strings:
    """A rule that turns a string into another one.

    Parameters
    ----------
    settings : config.CopyTask, config.ReverseTask or config.SortTask
    """

    def __init__(self, settings: StringTask) -> None:
        self.settings = settings
        self.num_draws = 1 + settings.length
        self.source_symbols = self.target_symbols = settings.alphabet

    def texts(self, uniforms: NDArray[np.float64]) -> tuple[list[str], list[str]]:
        """Sources and targets from uniform numbers (N, num_draws): the length, then each symbol."""
        settings = self.settings
        symbols = np.array([ord(symbol) for symbol in settings.alphabet], np.uint32)
        num_lengths = settings.length - settings.min_length + 1
        lengths = settings.min_length + (uniforms[:, :1] * num_lengths).astype(np.int64)  # (N, 1)
        codes = symbols[(uniforms[:, 1:] * symbols.size).astype(np.int64)]  # (N, L)
        codes[np.arange(settings.length) >= lengths] = 0
        return _strings(codes), _strings(RULES[settings.type](codes, lengths))

    def blind(self) -> Blind:
        """The best without input: all answers of a length are alike, but for `sort` the mixed ones more probable."""
        lengths = np.arange(self.settings.min_length, self.settings.length + 1)
        entropy, most = math.log(lengths.size) + self._entropies(lengths).mean(), self._most(lengths).max()
        return Blind(1.0 - float(most) / lengths.size, float(entropy / (lengths.mean() + 1.0)))

    def _entropies(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of the answers of each length, in nats: n ln A; sorted, a multinomial's, n ln A - ln n! + A E[ln C!].

        C, how often one symbol occurs in n, is binomial with probability 1 / A.
        """
        size = len(self.settings.alphabet)
        orders = [_log_arrangements(n, size) if self.settings.type == "sort" else 0.0 for n in lengths.tolist()]
        return np.asarray(lengths * math.log(size) - np.array(orders))

    def _most(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """P of the most probable answer of each length: A^-n; sorted, that of the most even counts."""
        size = len(self.settings.alphabet)
        orders = [_even_arrangements(n, size) if self.settings.type == "sort" else 1.0 for n in lengths.tolist()]
        return np.array(orders) * np.power(float(size), -lengths)


def _log_arrangements(n: int, size: int) -> float:
    """E[ln(n! / prod C!)]: in how many orders n symbols can stand that were drawn from `size`."""
    probs = [math.comb(n, count) * math.pow(size - 1, n - count) / math.pow(size, n) for count in range(n + 1)]
    return math.lgamma(n + 1) - size * sum(prob * math.lgamma(count + 1) for count, prob in enumerate(probs))


def _even_arrangements(n: int, size: int) -> float:
    """N! / prod c! with counts c that differ by at most one: the largest there is."""
    each, more = divmod(n, size)
    return float(math.factorial(n) / (math.factorial(each) ** (size - more) * math.factorial(each + 1) ** more))


def _reversed(codes: Codes, lengths: NDArray[np.int64]) -> Codes:
    places = np.arange(codes.shape[1])
    mirror = np.where(places < lengths, lengths - 1 - places, places)
    return np.take_along_axis(codes, mirror, axis=1)


def _sorted(codes: Codes, lengths: NDArray[np.int64]) -> Codes:
    is_real = np.arange(codes.shape[1]) < lengths
    return np.sort(np.where(is_real, codes, np.uint32(-1 % 2**32)), axis=1) * is_real.astype(np.uint32)


RULES: dict[str, Callable[[Codes, Any], Codes]] = {
    "copy": lambda codes, _: codes,
    "reverse": _reversed,
    "sort": _sorted,
}


def _strings(codes: Codes) -> list[str]:
    """Rows of code points as texts; NumPy drops the zeros at the end."""
    texts: list[str] = np.ascontiguousarray(codes).view(f"U{codes.shape[1]}")[:, 0].tolist()
    return texts
