"""Run folders to predictors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unrolled.config import longest_sequence, longest_source
from unrolled.decoding import Ensemble
from unrolled.errors import ConfigError, VocabularyError
from unrolled.inference.engines import EngineName, open_engine
from unrolled.inference.predictor import Predictor
from unrolled.runs import Run
from unrolled.text import Codec

if TYPE_CHECKING:
    from unrolled.models.device import DeviceName

__all__ = ["load"]


def load(
    path: str | Path | Sequence[str | Path], *, engine: EngineName = "auto", device: DeviceName = "auto"
) -> Predictor:
    """Open a trained run, or several as one ensemble, for prediction.

    An ensemble predicts from the mean of its members' distributions; settings of the search are those of the first.

    Parameters
    ----------
    path : path or sequence of paths
        Run folders.
    engine : {"auto", "torch", "numpy"}
        What computes; both give the same results. `auto` takes PyTorch where it is installed.
    device : {"auto", "cpu", "cuda", "mps"}
        Where PyTorch computes.

    Raises
    ------
    CheckpointError
        If a folder is not a complete, undamaged run.
    VocabularyError
        If members of an ensemble read or write text differently.
    MissingExtraError
        If PyTorch is asked for and not installed.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    if not paths:
        raise ConfigError("load: expected at least one run folder, got none")
    runs = [Run.open(one) for one in paths]
    codecs = [Codec.from_json(run.vocabulary()) for run in runs]
    for member, codec in zip(paths, codecs, strict=True):
        _check_same_text(codecs[0], codec, paths[0], member)
    engines = [open_engine(run, codec, engine=engine, device=device) for run, codec in zip(runs, codecs, strict=True)]
    return Predictor(
        engines[0] if len(engines) == 1 else Ensemble(engines),
        codecs[0],
        runs[0].config,
        name=" + ".join(map(str, paths)),
        data=runs[0].data(),
        source_limit=_least(longest_source(run.config.model) for run in runs),
        target_limit=_least(longest_sequence(run.config.model.decoder) for run in runs),
    )


def _least(limits: Iterable[int | None]) -> int | None:
    """The limit of an ensemble."""
    return min((limit for limit in limits if limit is not None), default=None)


def _check_same_text(first: Codec, other: Codec, first_path: Path, other_path: Path) -> None:
    """Refuse members of an ensemble whose symbols do not mean the same."""
    for name, ours, theirs in (
        ("source vocabulary", first.source, other.source),
        ("target vocabulary", first.target, other.target),
        ("normal form", first.data.normal_form, other.data.normal_form),
        ("source units", first.data.source.units, other.data.source.units),
        ("target units", first.data.target.units, other.data.target.units),
        ("set of subwords", first.learnt, other.learnt),
    ):
        if ours != theirs:
            raise VocabularyError(
                f"ensemble: {other_path} has another {name} than {first_path}; train its members on the same data"
            )
