"""What a study is: a claim of the field, its paper, and a measurement that says whether it holds here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from unrolled.figures import Curve

__all__ = ["Interval", "Result", "Size", "Study", "curve", "pick"]

Size = Literal["tiny", "default", "full"]
"""`default` takes at most ten minutes on two cores, `full` as long as it needs, `tiny` seconds, to try the code."""

T_97_5 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t with 1 to 9 degrees of freedom."""


def pick(size: Size, *, tiny: Any, default: Any, full: Any) -> Any:
    """The value for a size."""
    return {"tiny": tiny, "default": default, "full": full}[size]


@dataclass(frozen=True)
class Interval:
    """Mean of a value over seeds, with its 95 % interval by Student's t; without one where there is one seed."""

    mean: float
    low: float
    high: float
    num_seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """From one value a seed."""
        mean, n = float(np.mean(values)), len(values)
        if n < 2:
            return cls(mean, mean, mean, n)
        spread = T_97_5[min(n, 10) - 2] * float(np.std(values, ddof=1)) / math.sqrt(n)
        return cls(mean, mean - spread, mean + spread, n)

    def __str__(self) -> str:
        if self.num_seeds < 2:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ± {(self.high - self.low) / 2:.2g}"


def curve(x: Sequence[float], values: Sequence[Interval]) -> Curve:
    """Means over x with their intervals."""
    mean, low, high = ([getattr(value, edge) for value in values] for edge in ("mean", "low", "high"))
    return Curve(x, mean, low, high)


@dataclass(frozen=True)
class Result:
    """What a study came to.

    Attributes
    ----------
    columns, rows : the table
        Cells are strings, numbers or intervals.
    figure : Figure
    held : bool or None
        Whether the claim held; none where it held in part.
    verdict : str
        What was seen, in a sentence or two with its numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    figure: Figure
    held: bool | None
    verdict: str

    def lines(self) -> list[str]:
        """The table and the verdict for people."""
        cells = [list(self.columns), *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        answer = "held in part" if self.held is None else "held" if self.held else "did not hold"
        return [*table, "", f"the claim {answer}: {self.verdict}"]

    def to_json(self) -> dict[str, Any]:
        """Everything but the figure, as plain values."""
        return {
            "columns": list(self.columns),
            "rows": [[_plain(cell) for cell in row] for row in self.rows],
            "held": None if self.held is None else bool(self.held),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Study:
    """A study by name.

    Attributes
    ----------
    name, claim, paper : str
    measure : callable
        Runs it at a size, reporting what it is at through its second argument.
    """

    name: str
    claim: str
    paper: str
    measure: Callable[[Size, Callable[[str], None]], Result]


def _shown(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _plain(cell: Any) -> Any:
    if isinstance(cell, Interval):
        return {"mean": cell.mean, "low": cell.low, "high": cell.high, "num_seeds": cell.num_seeds}
    return cell
