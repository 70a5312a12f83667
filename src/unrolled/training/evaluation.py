"""The dev set: its loss, and on request error rates of what the model itself writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unrolled import config
from unrolled.decoding import greedy
from unrolled.metrics import References, count_errors
from unrolled.models.contract import SequenceModel
from unrolled.models.engine import TorchEngine
from unrolled.text import EOS, UNK, Examples, collate, evaluation_batches, in_order
from unrolled.training.device import on_device
from unrolled.training.objective import cross_entropy_sum
from unrolled.training.processes import Processes

__all__ = ["Dev", "DevSet", "Score", "SharedDev"]

_BATCH_TOKENS = 1 << 13
_BATCH_LOGITS = 1 << 25  # at most 128 MiB of a large vocabulary
_MAX_BATCH_SIZE = 512
_SLACK = 10  # symbols that an output may be longer than the longest reference


@dataclasses.dataclass(frozen=True)
class Score:
    """What a model came to on the dev set."""

    loss: float | None
    """Nats a label, without smoothing; none if there is no label."""
    value: float | None
    """Of the metric that chooses; lower is better."""
    num_labels: int
    num_characters: int | None = None
    """Of running text, for bits per character."""


class Dev(Protocol):
    """Held-out data that chooses the best weights and stops early."""

    def score(self, model: nn.Module, *, should_stop: Callable[[], bool] = lambda: False) -> Score | None:
        """Score a model in evaluation mode; none if `should_stop` said so meanwhile."""


class DevSet:
    """Scores a model on held-out examples.

    Parameters
    ----------
    examples : Examples
        At least one.
    vocabulary_size : int
        Target symbols.
    settings : config.Training
        Its `dev_metric`.
    device : torch.device
        Where the model lies.
    max_length : int, optional
        Most symbols that the model can write, end symbol included; none for any number.

    Notes
    -----
    The error rates decode greedily, each distinct source once, and count the nearest of its references. Outputs are cut
    ten symbols after the longest reference of the dev set: a young model that never ends costs no more than that.
    """

    def __init__(
        self,
        examples: Examples,
        settings: config.Training,
        *,
        vocabulary_size: int,
        device: torch.device,
        max_length: int | None = None,
    ) -> None:
        self._examples = examples
        self._vocabulary_size = vocabulary_size
        self._metric = settings.dev_metric
        self._device = device
        longest = int(examples.target.lengths.max()) + _SLACK
        self._max_length = longest if max_length is None else min(longest, max_length)
        self._batches = evaluation_batches(
            examples.source.lengths,
            examples.target.lengths,
            batch_tokens=min(_BATCH_TOKENS, max(1, _BATCH_LOGITS // vocabulary_size)),
            max_batch_size=_MAX_BATCH_SIZE,
        )
        self._references = None if self._metric == "loss" else self._group()

    def score(self, model: nn.Module, *, should_stop: Callable[[], bool] = lambda: False) -> Score | None:
        """Score a model in evaluation mode; it is put back as it was.

        Parameters
        ----------
        model : nn.Module
            Keeps the decoder contract.
        should_stop : callable
            Asked between batches; if it says so, the score is given up and `None` is returned.
        """
        was_training = model.training
        model.eval()
        try:
            return self._score(model, should_stop)
        finally:
            model.train(was_training)

    def _score(self, model: nn.Module, should_stop: Callable[[], bool]) -> Score | None:
        total, num_labels = 0.0, 0
        for indices in self._batches:
            if should_stop():
                return None
            batch_total, batch_labels = self._loss(model, indices)
            total, num_labels = total + batch_total, num_labels + batch_labels
        if num_labels == 0:
            return Score(loss=None, value=None, num_labels=0)
        loss = total / num_labels
        value = loss if self._references is None else self._error_rate(model, self._references, should_stop)
        return None if value is None else Score(loss=loss, value=value, num_labels=num_labels)

    @torch.inference_mode()
    def _loss(self, model: nn.Module, indices: NDArray[np.int64]) -> tuple[float, int]:
        contract: SequenceModel = model  # type: ignore[assignment]
        batch = collate(self._examples, indices)
        source, source_mask, inputs, labels = on_device(batch, self._device)
        memory = contract.encode(source, source_mask)
        logits = contract.decode(inputs, memory, contract.initial_state(memory, len(source))).logits  # (B, T, V)
        return float(cross_entropy_sum(logits, labels)), batch.num_labels

    def _error_rate(self, model: nn.Module, references: References, should_stop: Callable[[], bool]) -> float | None:
        engine = TorchEngine(model, vocabulary_size=self._vocabulary_size, device=self._device)
        rows = np.array(references.first)  # one a distinct source
        lengths = self._examples.source.lengths[rows]
        batches = evaluation_batches(lengths, batch_tokens=_BATCH_TOKENS, max_batch_size=_MAX_BATCH_SIZE)
        outputs = []
        for indices in batches:
            if should_stop():
                return None
            sources = [self._examples.source[row].astype(np.int64) for row in rows[indices]]
            found = greedy(engine, sources, max_length=self._max_length)
            outputs.append([_symbols(item.ids, unknown=str(UNK)) for item in found])
        errors = count_errors(in_order(batches, outputs), references)
        return errors.error_rate if self._metric == "error_rate" else errors.symbol_error_rate

    def _group(self) -> References:
        """References by distinct source, features included; an unknown symbol in one equals nothing."""
        rows = range(len(self._examples))
        keys = [self._examples.source[row].tobytes() for row in rows]
        return References.from_lines(keys, [_symbols(self._examples.target[row], unknown="") for row in rows])


class SharedDev:
    """A dev set that the first of several processes scores for all of them.

    Parameters
    ----------
    dev : Dev
    processes : Processes
    """

    def __init__(self, dev: Dev, processes: Processes) -> None:
        self._dev = dev
        self._processes = processes

    def score(self, model: nn.Module, *, should_stop: Callable[[], bool] = lambda: False) -> Score | None:
        """Score in the first process; the others wait for what it says."""
        score = self._dev.score(model, should_stop=should_stop) if self._processes.is_main else None
        numbers = (0.0, 0.0, -1) if score is None else (score.loss or 0.0, score.value or 0.0, score.num_labels)
        loss, value, num_labels = self._processes.of_main(*numbers)
        if num_labels < 0:
            return None
        if num_labels == 0:
            return Score(None, None, 0)
        return Score(loss, value, int(num_labels), None if score is None else score.num_characters)


def _symbols(ids: NDArray[Any], *, unknown: str) -> list[str]:
    """Ids as symbols that are only compared, the end symbol left out."""
    return [unknown if id_ == UNK else str(id_) for id_ in ids.tolist() if id_ != EOS]
