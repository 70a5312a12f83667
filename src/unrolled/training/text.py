"""Training on running text: what a step is made of, its loss with the carried state, and the held-out text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unrolled import config
from unrolled.decoding import Context, text_log_probs
from unrolled.models.contract import SequenceModel, leaves, refilled
from unrolled.models.engine import TorchEngine
from unrolled.text import BOS, Streams, TextBatch, Tokens, Windows
from unrolled.training.device import to_host
from unrolled.training.evaluation import Score
from unrolled.training.objective import cross_entropy_sum
from unrolled.training.sampled_softmax import SampledSoftmax

__all__ = ["TextDev", "TextObjective", "TextSteps", "is_streamed"]


def is_streamed(settings: config.Config) -> bool:
    """Whether a model carries its state through running text, from step to step."""
    return isinstance(settings.data, config.Text) and Context.of(settings).length is None


class TextSteps:
    """Epoch after epoch of a text, `accumulate` batches a step, the last step of an epoch with what is left.

    Parameters
    ----------
    tokens : id array (N,)
    settings : config.Config
        Models that carry a state read streams, others windows; of `training`, a micro-batch has at most `batch_tokens`
        symbols in at most `max_batch_size` rows.
    """

    def __init__(self, tokens: Tokens, settings: config.Config) -> None:
        assert isinstance(settings.data, config.Text)
        training, length = settings.training, settings.data.context
        batch_size = min(training.max_batch_size, max(1, training.batch_tokens // length))
        self._batches: Streams | Windows
        if is_streamed(settings):
            self._batches = Streams(tokens, batch_size=batch_size, length=length, seed=training.seed)
        else:
            self._batches = Windows(tokens, batch_size=batch_size, length=length, seed=training.seed)
        self._accumulate = training.accumulate

    @property
    def num_examples(self) -> int:
        """Symbols that are predicted in an epoch."""
        return self._batches.num_labels

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the text is seen once."""
        return -(-len(self._batches) // self._accumulate)

    @property
    def tokens_per_step(self) -> float:
        """Mean number of symbols of a step."""
        return self._batches.num_labels / self.steps_per_epoch

    def epoch_of(self, step: int) -> int:
        """Epoch of a step, both counted from 1; 1 for step 0."""
        return 1 + max(step - 1, 0) // self.steps_per_epoch

    def batches_of(self, step: int) -> list[TextBatch]:
        """Micro-batches of a step, counted from 1."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        first = place * self._accumulate
        return [self._batches.batch(epoch, i) for i in range(first, min(first + self._accumulate, len(self._batches)))]


class TextObjective:
    """Cross entropy of each symbol given those before it; where batches go on, so does the state, cut from the graph.

    Backpropagation through time is truncated to the chunk (Williams & Peng 1990), so that time and memory of a step do
    not depend on how many came before it.

    Parameters
    ----------
    settings : config.Training
        Its label smoothing and precision.
    device : torch.device
        Where the model lies.
    is_carried : bool
        Whether batches go on where the one before has ended.
    sampled : SampledSoftmax, optional
        What the softmax is estimated from; all classes where it is absent.
    """

    def __init__(
        self,
        settings: config.Training,
        *,
        device: torch.device,
        is_carried: bool,
        sampled: SampledSoftmax | None = None,
    ) -> None:
        self._settings = settings
        self._sampled = sampled
        self._device = device
        self._is_carried = is_carried
        self._state: Any = None
        self._stored: dict[str, NDArray[Any]] = {}  # of a resumed run, until the model tells what a state is made of

    def loss_sum(self, model: SequenceModel, batch: TextBatch, *, step: int) -> Tensor:
        """Loss in nats summed over the labels of a batch."""
        inputs = torch.from_numpy(batch.inputs).to(self._device)
        reset = None if batch.reset is None else torch.from_numpy(batch.reset).to(self._device)
        classes = None if self._sampled is None else self._sampled.classes(batch.labels, step=step).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._settings.precision == "bfloat16"):
            output = model.decode(
                inputs, None, self._before(model, batch), reset=reset, classes=None if classes is None else classes.ids
            )
        self._state = output.state.detach() if self._is_carried else None
        if classes is not None:
            return cross_entropy_sum(classes.weighted(output.logits), classes.columns)
        labels = torch.from_numpy(batch.labels).to(self._device)
        return cross_entropy_sum(output.logits, labels, label_smoothing=self._settings.label_smoothing)

    def _before(self, model: SequenceModel, batch: TextBatch) -> Any:
        if batch.is_continued and self._state is not None:
            return self._state
        start = model.initial_state(None, len(batch.inputs))
        if not batch.is_continued:
            return start
        arrays = (self._stored[str(place)] for place in range(len(self._stored)))
        return refilled(start, (torch.from_numpy(array.copy()).to(self._device) for array in arrays))

    def state(self) -> dict[str, NDArray[Any]]:
        """The carried state, for exact resume."""
        if self._state is None:
            return self._stored
        return {str(place): to_host(leaf) for place, leaf in enumerate(leaves(self._state))}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Put back what `state` gave."""
        self._state, self._stored = None, dict(state)


class TextDev:
    """Scores a model on the whole held-out text.

    Parameters
    ----------
    tokens : id array (N,)
        Begins with what is read before the first symbol that counts; at least two.
    context : Context
    num_characters, vocabulary_size : int
    device : torch.device
        Where the model lies.
    """

    def __init__(
        self, tokens: Tokens, *, context: Context, num_characters: int, vocabulary_size: int, device: torch.device
    ) -> None:
        self._num_characters = num_characters
        self._tokens = tokens
        self._num_labels = int((tokens[1:] != BOS).sum())
        self._context = context
        self._vocabulary_size = vocabulary_size
        self._device = device

    def score(self, model: nn.Module, *, should_stop: Callable[[], bool] = lambda: False) -> Score | None:
        """Score a model in evaluation mode; it is put back as it was."""
        was_training = model.training
        try:
            engine = TorchEngine(model, vocabulary_size=self._vocabulary_size, device=self._device)
            log_probs = text_log_probs(engine, self._tokens, context=self._context, should_stop=should_stop)
        finally:
            model.train(was_training)
        if log_probs is None:
            return None
        loss = -float(log_probs.sum()) / self._num_labels
        return Score(loss, loss, self._num_labels, self._num_characters)
