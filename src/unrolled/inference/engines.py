"""Choosing what computes: PyTorch where it is installed, else NumPy; one run, or several as an ensemble."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

from unrolled.config import FrameData, Frames, Text
from unrolled.errors import ConfigError, MissingExtraError
from unrolled.parameters import Sizes, inventory
from unrolled.runs import Run
from unrolled.text import Codec, FrameCodec, TextCodec

if TYPE_CHECKING:
    from unrolled.models.device import DeviceName
    from unrolled.models.engine import TorchEngine
    from unrolled.reference.engine import NumpyEngine

__all__ = ["AnyCodec", "EngineName", "codec_of", "open_engine", "sizes_of"]

AnyCodec = Codec | TextCodec | FrameCodec
"""The data side of a model: of pairs, of running text, or of vectors."""

EngineName = Literal["auto", "torch", "bfloat16", "numpy"]
"""`bfloat16` is PyTorch with weights and states in that type: the faster one where the device has its instructions."""


def open_engine(
    run: Run, codec: AnyCodec, *, engine: EngineName = "auto", device: DeviceName = "auto"
) -> TorchEngine | NumpyEngine:
    """Build a run's model from its stored weights.

    Parameters
    ----------
    run : Run
        An opened run folder.
    codec : Codec or TextCodec
        Its vocabulary, which decides the sizes of the weights.
    engine : {"auto", "torch", "bfloat16", "numpy"}
        `auto` takes PyTorch where it is installed, else NumPy; `bfloat16` is PyTorch in that type.
    device : {"auto", "cpu", "cuda", "mps"}
        Where PyTorch computes; NumPy has the CPU only.

    Raises
    ------
    CheckpointError
        If the weights are missing, damaged or not those of the stored settings.
    MissingExtraError
        If PyTorch is asked for and not installed.
    ConfigError
        If the model offers no search, or the device or the engine does not exist here.
    """
    if isinstance(run.config.model, Frames):
        raise ConfigError(
            f"{run.path}: a {run.config.model.head} head over vectors offers no search; use: unrolled evaluate"
        )
    name = choose_engine(engine)
    if name == "numpy" and device not in ("auto", "cpu"):
        raise ConfigError(f"device: the numpy engine computes on the CPU only, got {device}")
    sizes = sizes_of(codec)
    parameters = inventory(run.config.model, sizes)
    weights = run.weights({parameter.name: parameter.shape for parameter in parameters})
    if name != "numpy":
        import torch

        from unrolled import models
        from unrolled.models.device import choose_device
        from unrolled.models.engine import TorchEngine

        model = models.build(run.config.model, sizes, weights)
        if name == "bfloat16":
            model = model.to(torch.bfloat16)
        return TorchEngine(model, vocabulary_size=sizes.target, device=choose_device(device), is_final=True)
    from unrolled import reference
    from unrolled.reference.engine import NumpyEngine

    numpy_model = reference.build(run.config.model, sizes, weights)
    assert not isinstance(numpy_model, reference.Frames), "refused above"
    return NumpyEngine(numpy_model, vocabulary_size=sizes.target)


def codec_of(run: Run) -> AnyCodec:
    """The vocabulary of a run, with its settings of text."""
    if isinstance(run.config.data, FrameData):
        return FrameCodec.from_json(run.vocabulary())
    kind = TextCodec if isinstance(run.config.data, Text) else Codec
    return kind.from_json(run.vocabulary())


def sizes_of(codec: AnyCodec) -> Sizes:
    """Sizes of a model's vocabularies."""
    if isinstance(codec, FrameCodec):
        return Sizes(source=codec.num_inputs, features=0, target=codec.num_outputs)
    if isinstance(codec, TextCodec):
        return Sizes(source=0, features=0, target=len(codec.vocabulary))
    return Sizes(source=len(codec.source), features=codec.source.num_features, target=len(codec.target))


def choose_engine(engine: EngineName) -> Literal["torch", "bfloat16", "numpy"]:
    """Resolve `auto`, and say clearly what is not there."""
    if engine not in get_args(EngineName):
        raise ConfigError(f"engine: expected {' or '.join(get_args(EngineName))}, got {engine!r}")
    has_torch = find_spec("torch") is not None
    if engine == "auto":
        return "torch" if has_torch else "numpy"
    if engine != "numpy" and not has_torch:
        raise MissingExtraError("torch", extra="train", purpose=f"the {engine} engine")
    return engine
