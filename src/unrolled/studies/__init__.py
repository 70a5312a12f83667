"""The field's claims, measured: each study states a claim and its paper, measures, draws, and says whether it held.

Importing this room needs PyTorch and matplotlib; without them, the import raises `MissingExtraError`.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable
from pathlib import Path

from unrolled import figures
from unrolled.errors import ConfigError
from unrolled.runs import write_atomic
from unrolled.studies import (
    bottleneck,
    causal_mask,
    cost,
    feeding,
    forget_bias,
    gradient_distance,
    gru_lstm,
    heads,
    memory_horizon,
    softmax_scale,
)
from unrolled.studies.study import Interval, Result, Size, Study
from unrolled.version import __version__

__all__ = ["STUDIES", "Interval", "Result", "Size", "Study", "find", "run"]

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        gradient_distance,
        memory_horizon,
        forget_bias,
        bottleneck,
        softmax_scale,
        cost,
        feeding,
        causal_mask,
        gru_lstm,
        heads,
    )
}
"""All studies by name."""


def find(name: str) -> Study:
    """The study of a name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"study: expected one of {', '.join(STUDIES)}, got {name!r}{hint}")
    return STUDIES[name]


def run(
    study: Study, folder: str | Path, *, size: Size = "default", tell: Callable[[str], None] = lambda _: None
) -> Result:
    """Run a study; its numbers go to `NAME.json` and its figure to `NAME.png`.

    Parameters
    ----------
    study : Study
    folder : path
        Made where it is missing.
    size : {"tiny", "default", "full"}
    tell : callable
        Told what is being measured.
    """
    start = time.perf_counter()
    result = study.measure(size, tell)
    values = {
        "study": study.name,
        "claim": study.claim,
        "paper": study.paper,
        "size": size,
        "version": __version__,
        "seconds": round(time.perf_counter() - start, 1),
        **result.to_json(),
    }
    folder = Path(folder)
    figures.save(result.figure, folder / f"{study.name}.png")
    write_atomic(folder / f"{study.name}.json", (json.dumps(values, ensure_ascii=False, indent=1) + "\n").encode())
    return result
