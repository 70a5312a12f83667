"""Two systems on the same sources."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from unrolled.errors import DataError
from unrolled.metrics.bootstrap import RESAMPLES, Difference, paired_difference
from unrolled.metrics.evaluation import Evaluation

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same sources; differences are the second's rate minus the first's."""

    num_sources: int
    error_rate: Difference
    symbol_error_rate: Difference
    only_first_wrong: int
    only_second_wrong: int
    both_wrong: int

    def to_json(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A report for people, one string a line."""
        rates = (("wrong sources", self.error_rate), ("symbol errors", self.symbol_error_rate))
        return [
            *(
                f"{name}  {100 * rate.first:.2f} % → {100 * rate.second:.2f} %  difference {rate}"
                for name, rate in rates
            ),
            f"of {self.num_sources} sources only the first is wrong in {self.only_first_wrong}, only the second in"
            f" {self.only_second_wrong}, both in {self.both_wrong}",
        ]


def compare(first: Evaluation, second: Evaluation, *, resamples: int = RESAMPLES, seed: int = 0) -> Comparison:
    """Whether the second system is better than the first: paired bootstrap over their common sources.

    Raises
    ------
    DataError
        If the two were not evaluated on the same sources in the same order.
    """
    if first.references.keys != second.references.keys:
        raise DataError(
            f"comparison needs the same sources in the same order, got {len(first.references)} and"
            f" {len(second.references)} that differ; evaluate both systems on one test file"
        )
    a, b = first.errors, second.errors
    return Comparison(
        num_sources=len(first.references),
        error_rate=paired_difference(a.per_source, b.per_source, resamples=resamples, seed=seed),
        symbol_error_rate=paired_difference(a.per_symbol, b.per_symbol, resamples=resamples, seed=seed),
        only_first_wrong=int((a.is_wrong & ~b.is_wrong).sum()),
        only_second_wrong=int((b.is_wrong & ~a.is_wrong).sum()),
        both_wrong=int((a.is_wrong & b.is_wrong).sum()),
    )
