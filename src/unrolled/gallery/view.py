"""What pictures of a run are drawn from: the run, pairs to run it on, and one pair to follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unrolled.diagnosis import Batch, Material, PairMaterial, TextMaterial, open_material
from unrolled.errors import CheckpointError, ConfigError, DataError
from unrolled.inference import Prediction, Predictor, Report, load_predictor
from unrolled.text import PAD, Pairs, parse_input, shift

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
        Pairs or text to look at; none for what the run held out, or trained on.
    text : str or None
        The source (of a language model: the text) to follow; none for one of the data.
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

    @property
    def of_pairs(self) -> PairMaterial:
        """The material of a run on pairs.

        Raises
        ------
        ConfigError
            If it is a run on text.
        """
        if not isinstance(self.material, PairMaterial):
            raise ConfigError(f"{self.path} is a language model; this figure is one of pairs")
        return self.material

    @cached_property
    def pairs(self) -> Pairs:
        """Pairs that the run was not trained on, if there are any, else those that it was.

        Raises
        ------
        DataError
            If they are gone.
        """
        found = self.of_pairs.train if self.of_pairs.dev is None else self.of_pairs.dev
        if found is None:
            raise self._no_data()
        return found

    @cached_property
    def batch(self) -> Batch:
        """A few examples, held-out ones if there are any."""
        held_out = self.material.sample(FEW, longest=LONGEST, is_held_out=True)
        found = held_out or self.material.sample(FEW, longest=LONGEST)
        if found is None:
            raise self._no_data()
        return found

    def _no_data(self) -> DataError:
        reason = self.material.missing.get("train", f"{self.path}: there is no data to look at")
        return DataError(f"{reason}; or name data with --data")

    @cached_property
    def source(self) -> tuple[str, tuple[str, ...]]:
        """The source to follow and its features: the longest that can still be read, or what was asked for."""
        if self.text is not None:
            return parse_input(self.text, self.of_pairs.codec.data)
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
        """That source with its best output, or a piece of the text, as a batch of one."""
        if isinstance(self.material, TextMaterial):
            return self._piece(self.material)
        source, features = self.source
        ids = np.array(self.predictor.encode([source], [features] if features else None)[0], dtype=np.int64)
        labels = np.array(self.predictor.codec.encode_target(self.prediction.text), dtype=np.int64)
        tensors = (torch.from_numpy(row)[None] for row in (ids, shift(labels[None])[0], labels))
        return replace(Batch.of(tuple(tensors)), pad=PAD)

    def _piece(self, material: TextMaterial) -> Batch:
        if self.text is None:
            return self.batch.rows(torch.tensor([0]))
        ids = torch.from_numpy(material.codec.encode(self.text).astype(np.int64))[None]
        if ids.shape[1] < 2:
            raise ConfigError("--input: expected at least two symbols of text")
        return Batch(ids[:, :-1], ids[:, 1:], pad=PAD)

    def symbols(self, ids: torch.Tensor, *, of_source: bool = False) -> list[str]:
        """Names of one row of ids."""
        row = ids[0].tolist()
        if isinstance(self.material, TextMaterial):
            return self.material.codec.names(row)
        codec = self.of_pairs.codec
        return codec.source_symbols(row) if of_source else codec.target_symbols(row)

    @cached_property
    def report(self) -> Report:
        """The run evaluated on some of the pairs, greedily."""
        some = np.sort(np.random.default_rng(0).permutation(len(self.pairs))[:SOME])
        return self.predictor.evaluate(self.pairs.take(some), beam=1)
