"""The PyTorch engine: the layers and models of the inventory as fast modules, behind one decoder contract."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from unrolled import config
from unrolled.models.contract import DecoderOutput
from unrolled.models.frames import Frames
from unrolled.models.language_model import LanguageModel
from unrolled.models.seq2seq import Seq2Seq
from unrolled.parameters import Sizes

__all__ = ["DecoderOutput", "Frames", "LanguageModel", "Seq2Seq", "build"]


def build(
    model: config.Model, sizes: Sizes, weights: Mapping[str, NDArray[np.floating]]
) -> Seq2Seq | LanguageModel | Frames:
    """Make a model with these weights, in training mode, on the CPU.

    Parameters
    ----------
    model : config.Model
    sizes : Sizes
        Vocabulary sizes.
    weights : mapping of name to array
        Exactly the names and shapes of `parameters.inventory(model, sizes)`; copied.
    """
    with torch.device("meta"), _WithoutStartValues():
        module = _module(model, sizes)
    module.load_state_dict({name: torch.tensor(array) for name, array in weights.items()}, assign=True)
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    return module


def _module(model: config.Model, sizes: Sizes) -> Seq2Seq | LanguageModel | Frames:
    if isinstance(model, config.Frames):
        return Frames(model, sizes)
    return LanguageModel(model, sizes) if isinstance(model, config.LanguageModel) else Seq2Seq(model, sizes)


class _WithoutStartValues(TorchFunctionMode):
    """Leaves out PyTorch's own start values: ours follow, and drawing them on `meta` imports a compiler, in seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))
