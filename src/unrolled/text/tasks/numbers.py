"""Addition of digits, and dates: texts whose answers have to be worked out."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unrolled import config
from unrolled.text.tasks.blind import Blind

__all__ = ["Addition", "Dates"]

Uniforms = NDArray[np.float64]
Texts = NDArray[np.str_]

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Addition:
    """`27+5` to `32`.

    Parameters
    ----------
    settings : config.AdditionTask
    """

    num_draws = 2
    source_symbols, target_symbols = "0123456789+", "0123456789"

    def __init__(self, settings: config.AdditionTask) -> None:
        self.bound = 10**settings.digits

    def texts(self, uniforms: Uniforms) -> tuple[list[str], list[str]]:
        """Sources and targets from uniform numbers (N, 2), one a summand."""
        first, second = (uniforms * self.bound).astype(np.int64).T
        return _joined(first, "+", second), _joined(first + second)

    def blind(self) -> Blind:
        """The best without input: a sum s of two numbers below M has P = (M - |s - M + 1|) / M²."""
        sums = np.arange(2 * self.bound - 1)
        probs = (self.bound - np.abs(sums - self.bound + 1)) / self.bound**2
        entropy = -float((probs * np.log(probs)).sum())
        num_labels = 1 + np.searchsorted(10 ** np.arange(1, 8), sums, side="right") + 1  # digits and the end symbol
        return Blind(1.0 - float(probs.max()), entropy / float((probs * num_labels).sum()))


class Dates:
    """A day in one of six ways of writing it, to its ISO form.

    Parameters
    ----------
    settings : config.DatesTask
    """

    num_draws = 2
    source_symbols = "".join(sorted(set(" ,./0123456789" + "".join(MONTHS + WEEKDAYS))))
    target_symbols = "-0123456789"

    def __init__(self, settings: config.DatesTask) -> None:
        self.first = np.datetime64(f"{settings.first_year}-01-01", "D")
        self.num_days = int((np.datetime64(f"{settings.last_year}-12-31", "D") - self.first).astype(np.int64)) + 1

    def texts(self, uniforms: Uniforms) -> tuple[list[str], list[str]]:
        """Sources and targets from uniform numbers (N, 2): the day, and how it is written."""
        days = self.first + (uniforms[:, 0] * self.num_days).astype(np.int64)
        written = np.stack(_ways(days))  # (6, N)
        way = (uniforms[:, 1] * len(written)).astype(np.int64)
        return written[way, np.arange(len(days))].tolist(), np.datetime_as_string(days).tolist()

    def blind(self) -> Blind:
        """The best without input: all days are alike, and an ISO form has ten characters and its end."""
        return Blind(1.0 - 1.0 / self.num_days, math.log(self.num_days) / 11)


def _ways(days: NDArray[np.datetime64]) -> list[Texts]:
    months = days.astype("M8[M]")
    year, month = days.astype("M8[Y]").astype(np.int64) + 1970, months.astype(np.int64) % 12
    day, weekday = (days - months).astype(np.int64) + 1, (days.astype(np.int64) + 3) % 7  # 1970 began on a Thursday
    name, name_of_day = np.array(MONTHS)[month], np.array(WEEKDAYS)[weekday]
    short = name.astype("U3")
    return [
        _added(day, " ", name, " ", year),
        _added(name, " ", day, ", ", year),
        _added(short, " ", day, ", ", year),
        _added(name_of_day, ", ", day, " ", name, " ", year),
        _added(day, ".", month + 1, ".", year),
        _added(month + 1, "/", day, "/", year),
    ]


def _added(*parts: NDArray[np.generic] | str) -> Texts:
    """Texts side by side; numbers in decimal digits."""
    whole = np.array("")
    for part in parts:
        whole = np.char.add(whole, np.asarray(part).astype(np.str_))
    return whole


def _joined(*parts: NDArray[np.generic] | str) -> list[str]:
    texts: list[str] = _added(*parts).tolist()
    return texts
