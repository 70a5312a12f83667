"""From settings and weights to a model."""

from __future__ import annotations

from unrolled import config
from unrolled.errors import ShapeError
from unrolled.parameters import Sizes, inventory
from unrolled.reference.frames import Frames
from unrolled.reference.language_model import LanguageModel
from unrolled.reference.layer import Weights
from unrolled.reference.seq2seq import Seq2Seq

__all__ = ["build"]


def build(settings: config.Model, sizes: Sizes, weights: Weights) -> Seq2Seq | LanguageModel | Frames:
    """Build a model from its settings and weights.

    Parameters
    ----------
    settings : config.Model
    sizes : Sizes
        Vocabulary sizes.
    weights : dict of arrays
        One of each name and shape of the inventory; their type is that of the computation.

    Raises
    ------
    ShapeError
        If a weight is missing, unknown, or of another shape than the inventory says.
    """
    shapes = {parameter.name: parameter.shape for parameter in inventory(settings, sizes)}
    for name, shape in shapes.items():
        if name not in weights:
            raise ShapeError(f"weight {name} is missing, expected shape {shape}")
        if weights[name].shape != shape:
            raise ShapeError(f"weight {name} must have shape {shape}, got {weights[name].shape}")
    for name in weights.keys() - shapes.keys():
        raise ShapeError(f"weight {name} is not one of this model's")
    if isinstance(settings, config.Frames):
        return Frames(settings, weights)
    if isinstance(settings, config.LanguageModel):
        return LanguageModel(settings, weights)
    return Seq2Seq(settings, sizes, weights)
