"""Sequence models, unrolled: train them on your own pairs or text, decode, and look inside.

::

    import unrolled

    unrolled.train("words.tsv", preset="g2p", out="runs/words")
    model = unrolled.load("runs/words")
    model.predict(["hello"])

Importing this package loads nothing heavy; each name is fetched from its room when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unrolled.version import __version__

if TYPE_CHECKING:
    from unrolled.config import Config
    from unrolled.errors import UnrolledError
    from unrolled.inference import Prediction, Predictor, Report, TextEvaluation, TextModel, compare, load
    from unrolled.settings import resolve
    from unrolled.training import train

__all__ = [
    "Config",
    "Prediction",
    "Predictor",
    "Report",
    "TextEvaluation",
    "TextModel",
    "UnrolledError",
    "__version__",
    "compare",
    "load",
    "resolve",
    "train",
]

_HOMES = {
    "Config": "config",
    "Prediction": "inference",
    "Predictor": "inference",
    "Report": "inference",
    "TextEvaluation": "inference",
    "TextModel": "inference",
    "UnrolledError": "errors",
    "compare": "inference",
    "load": "inference",
    "resolve": "settings",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unrolled' has no attribute {name!r}")
    value = getattr(import_module(f"unrolled.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
