"""Run folders to models that are ready to use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unrolled.config import FrameData, Frames, Text, longest_sequence, longest_source
from unrolled.decoding import Context, Ensemble
from unrolled.errors import ConfigError, VocabularyError
from unrolled.inference.engines import EngineName, open_engine
from unrolled.inference.predictor import Predictor
from unrolled.runs import Run
from unrolled.text import Codec, TextCodec

if TYPE_CHECKING:
    from unrolled.inference.frame_model import FrameModel
    from unrolled.inference.text_model import TextModel
    from unrolled.models.device import DeviceName

__all__ = ["load", "load_predictor", "load_text_model"]


def load(
    path: str | Path | Sequence[str | Path], *, engine: EngineName = "auto", device: DeviceName = "auto"
) -> Predictor | TextModel | FrameModel:
    """Open a trained run, or several as one ensemble.

    An ensemble predicts from the mean of its members' distributions; settings of the search are those of the first.

    Parameters
    ----------
    path : path or sequence of paths
        Run folders.
    engine : {"auto", "torch", "bfloat16", "numpy"}
        What computes; PyTorch and NumPy give the same results, and `auto` takes PyTorch where it is installed.
        `bfloat16` is PyTorch in that type, with nearly the same results: faster where the device has its instructions.
    device : {"auto", "cpu", "cuda", "mps"}
        Where PyTorch computes.

    Returns
    -------
    Predictor, TextModel or FrameModel
        The second of a language model, the third of a model of vectors.

    Raises
    ------
    CheckpointError
        If a folder is not a complete, undamaged run.
    ConfigError
        If an ensemble has a language model or a model of vectors in it.
    VocabularyError
        If members of an ensemble read or write text differently.
    MissingExtraError
        If PyTorch is asked for and not installed.
    """
    runs = _opened(path)
    if isinstance(runs[0].config.data, FrameData) and len(runs) == 1:
        from unrolled.inference.frame_model import FrameModel, frame_losses

        losses = frame_losses(runs[0], engine=engine, device=device)
        return FrameModel(losses, runs[0].config.data, name=str(runs[0].path))
    if any(isinstance(run.config.data, Text) for run in runs):
        return _text_model(runs, engine, device)
    return _predictor(runs, engine, device)


def load_predictor(
    path: str | Path | Sequence[str | Path], *, engine: EngineName = "auto", device: DeviceName = "auto"
) -> Predictor:
    """As `load`, for runs on pairs alone.

    Raises
    ------
    ConfigError
        If there is a language model among them.
    """
    runs = _opened(path)
    for run in runs:
        if isinstance(run.config.data, Text):
            raise ConfigError(
                f"{run.path} is a language model: it goes on from a text and has no source to answer; use: unrolled"
                f" generate {run.path} --prompt TEXT"
            )
    return _predictor(runs, engine, device)


def load_text_model(path: str | Path, *, engine: EngineName = "auto", device: DeviceName = "auto") -> TextModel:
    """As `load`, for language models alone.

    Raises
    ------
    ConfigError
        If the run is on pairs.
    """
    (run,) = _opened(path)
    _refuse_vectors(run)
    if not isinstance(run.config.data, Text):
        raise ConfigError(f"{run.path} is no language model: it answers sources; use: unrolled predict {run.path} FILE")
    return _text_model([run], engine, device)


def _refuse_vectors(run: Run) -> None:
    if isinstance(run.config.model, Frames):
        raise ConfigError(
            f"{run.path} has a {run.config.model.head} head over vectors, which offers no search and writes no text;"
            f" use: unrolled evaluate {run.path} FILE"
        )


def _opened(path: str | Path | Sequence[str | Path]) -> list[Run]:
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise ConfigError("load: expected at least one run folder, got none")
    return [Run.open(one) for one in paths]


def _text_model(runs: Sequence[Run], engine: EngineName, device: DeviceName) -> TextModel:
    from unrolled.inference.text_model import TextModel

    if len(runs) > 1:
        names = ", ".join(str(run.path) for run in runs)
        raise ConfigError(f"an ensemble is made of runs on pairs, got a language model among {names}")
    codec = TextCodec.from_json(runs[0].vocabulary())
    opened = open_engine(runs[0], codec, engine=engine, device=device)
    return TextModel(opened, codec, Context.of(runs[0].config), name=str(runs[0].path))


def _predictor(runs: Sequence[Run], engine: EngineName, device: DeviceName) -> Predictor:
    for run in runs:
        _refuse_vectors(run)
    codecs = [Codec.from_json(run.vocabulary()) for run in runs]
    for run, codec in zip(runs, codecs, strict=True):
        _check_same_text(codecs[0], codec, runs[0].path, run.path)
    engines = [open_engine(run, codec, engine=engine, device=device) for run, codec in zip(runs, codecs, strict=True)]
    return Predictor(
        engines[0] if len(engines) == 1 else Ensemble(engines),
        codecs[0],
        runs[0].config,
        name=" + ".join(str(run.path) for run in runs),
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
