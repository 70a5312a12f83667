"""What pictures of a run are drawn from: the run, pairs to run it on, and one pair to follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unrolled.diagnosis import Batch, Material, open_material, sample
from unrolled.errors import CheckpointError, DataError
from unrolled.inference import Prediction, Predictor, Report, load_predictor
from unrolled.text import PAD, Pairs, shift

__all__ = ["View"]

SOME = 1000
"""Held-out pairs that are evaluated."""
FEW = 8
LONGEST = 24
"""Symbols of a pair that is followed step by step, so that its picture can be read."""


@dataclass(frozen=True)
class View:
    """A run that is looked at.

    Attributes
    ----------
    path : Path
    data : path or None
        Pairs to look at; none for what the run held out, or trained on.
    text : str or None
        The source to follow; none for one of the pairs.
    """

    path: Path
    data: str | Path | None = None
    text: str | None = None

    @cached_property
    def material(self) -> Material:
        """Log, data and model."""
        return open_material(self.path, self.data)

    @cached_property
    def predictor(self) -> Predictor:
        """The run at work."""
        return load_predictor(self.path)

    @property
    def model(self) -> Any:
        """The PyTorch model.

        Raises
        ------
        CheckpointError
            If the run has no weights yet.
        """
        if self.material.model is None:
            raise CheckpointError(f"{self.path}: {self.material.missing['model']}")
        return self.material.model

    @cached_property
    def pairs(self) -> Pairs:
        """Pairs that the run was not trained on, if there are any, else those that it was.

        Raises
        ------
        DataError
            If they are gone.
        """
        found = self.material.dev if self.material.dev is not None else self.material.train
        if found is None:
            raise DataError(f"{self.material.missing['train']}; or name pairs with --data")
        return found

    @cached_property
    def batch(self) -> Batch:
        """A few of the pairs."""
        return sample(self.material.codec, self.pairs, FEW, longest=LONGEST)

    @cached_property
    def source(self) -> tuple[str, tuple[str, ...]]:
        """The source to follow and its features: the longest that can still be read, or what was asked for."""
        if self.text is not None:
            return self.text, ()
        lengths = np.array([len(text) for text in self.pairs.sources])
        row = int(np.argmax(np.where(lengths <= LONGEST, lengths, -lengths)))
        return self.pairs.sources[row], () if self.pairs.features is None else self.pairs.features[row]

    @cached_property
    def prediction(self) -> Prediction:
        """The best output for that source."""
        source, features = self.source
        has_attention = getattr(self.predictor.config.model.decoder, "attention", "") != "none"
        return self.predictor.search([source], [features] if features else None, need_attention=has_attention)[0][0]

    @cached_property
    def followed(self) -> Batch:
        """That source with its best output, as a batch of one."""
        source, features = self.source
        ids = np.array(self.predictor.encode([source], [features] if features else None)[0], dtype=np.int64)
        labels = np.array(self.predictor.codec.encode_target(self.prediction.text), dtype=np.int64)
        inputs = shift(labels[None])[0]
        tensors = (torch.from_numpy(row)[None] for row in (ids, inputs, labels))
        return replace(Batch.of(tuple(tensors)), pad=PAD)

    @cached_property
    def report(self) -> Report:
        """The run evaluated on some of the pairs, greedily."""
        some = np.sort(np.random.default_rng(0).permutation(len(self.pairs))[:SOME])
        return self.predictor.evaluate(self.pairs.take(some), beam=1)
