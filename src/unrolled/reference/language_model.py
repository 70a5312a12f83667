"""Language models: a decoder alone, behind the one decoder contract."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled import config
from unrolled.reference import ops
from unrolled.reference.autoregressive import Autoregressive, LossAndGradients
from unrolled.reference.cells import cell_type
from unrolled.reference.convolution import ConvolutionDecoder
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, accumulate, named, under
from unrolled.reference.layers import Embedding, Output
from unrolled.reference.recurrence import Recurrent, RecurrentCache
from unrolled.reference.transformer_decoder import TransformerDecoder
from unrolled.reference.wirings import RecurrentState

__all__ = ["LanguageModel", "RecurrentLanguageDecoder"]

_PAD = 0


class Stream(Protocol):
    """What training reads of a batch."""

    @property
    def inputs(self) -> IntArray:
        """Ids (B, T)."""

    @property
    def labels(self) -> IntArray:
        """The id after each input (B, T), PAD where there is none."""


class LanguageModelCache(NamedTuple):
    """What `LanguageModel.backward` needs, and the state after the inputs."""

    decoder: Any
    loss: ops.CrossEntropyCache
    state: Any


class LanguageModel(Autoregressive):
    """A model of P(y) = Π_t P(y_t | y_<t): nothing is encoded, and the memory is None.

    Parameters
    ----------
    settings : config.LanguageModel
    parameters : dict of arrays
        Those of the inventory; kept, not copied.
    """

    def __init__(self, settings: config.LanguageModel, parameters: Weights) -> None:
        self.parameters = parameters
        weights, decoder = under(parameters, "decoder"), settings.decoder
        if isinstance(decoder, config.RecurrentLanguageDecoder):
            self.decoder = RecurrentLanguageDecoder(decoder, weights)
        elif isinstance(decoder, config.TransformerDecoder):
            self.decoder = TransformerDecoder(decoder, weights)
        else:
            self.decoder = ConvolutionDecoder(decoder, weights)

    def forward(
        self,
        inputs: IntArray,
        labels: IntArray,
        state: Any = None,
        *,
        label_smoothing: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> tuple[FloatArray, LanguageModelCache]:
        """Loss of a batch or of one chunk of it: a 0-d array, nats, summed over its labels.

        `state` is that after the chunk before, from ``cache.state``; None for the start. It is taken as given: the
        gradient ends at the chunk's first input (truncated backpropagation).
        """
        begin = self.initial_state(None, len(inputs)) if state is None else state
        (logits, reached, _), decoder = self.decoder.forward(inputs, None, begin, rng=rng)  # (1)
        loss, cross_entropy = ops.cross_entropy_forward(
            logits, labels, labels != _PAD, smoothing=label_smoothing
        )  # (2)
        return loss, LanguageModelCache(decoder, cross_entropy, reached)

    def backward(self, d_loss: FloatArray | float, cache: LanguageModelCache) -> Gradients:
        """∂L/∂ of each parameter, by its name in the inventory."""
        d_logits = ops.cross_entropy_backward(d_loss, cache.loss)  # (2)
        _, gradients = self.decoder.backward(d_logits, cache.decoder)  # (1)
        return named("decoder", gradients)

    def loss_and_gradients(
        self, batch: Stream, *, label_smoothing: float = 0.0, rng: np.random.Generator | None = None
    ) -> LossAndGradients:
        """Loss and gradients of a batch from its start, summed over its labels; arguments as in `Seq2Seq`."""
        loss, cache = self.forward(batch.inputs, batch.labels, label_smoothing=label_smoothing, rng=rng)
        return LossAndGradients(float(loss), int((batch.labels != _PAD).sum()), self.backward(1.0, cache))


class RecurrentLanguageDecoderCache(NamedTuple):
    """What `RecurrentLanguageDecoder.backward` needs."""

    embedding: Any
    dropped: FloatArray | None
    layers: RecurrentCache
    output_dropped: FloatArray | None
    output: ops.LinearCache


class RecurrentLanguageDecoder:
    """Embedding, recurrent layers, output layer (Mikolov et al. 2010), from a zero state.

    With variational dropout each row draws one mask for its embeddings, one between any two layers and one before the
    output, and uses it at all steps of a call (Gal & Ghahramani 2016, section 4.2).

    Parameters
    ----------
    settings : config.RecurrentLanguageDecoder
    parameters : dict
        Named as in the inventory, without ``decoder.``.

    Notes
    -----
    Gal & Ghahramani also mask the step from h_{t−1} to h_t; here that connection stays whole.
    """

    def __init__(self, settings: config.RecurrentLanguageDecoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.settings = settings
        self.is_variational = settings.variational_dropout
        table_dropout = 0.0 if self.is_variational else settings.dropout
        self.embedding = Embedding(under(parameters, "embedding"), dropout=table_dropout)
        self.layers = Recurrent.from_parameters(
            cell_type(settings),
            under(parameters, "layers"),
            dropout=settings.dropout,
            is_variational=self.is_variational,
        )
        self.output = Output(parameters)

    def initial_state(self, memory: None, batch_size: int) -> RecurrentState:
        """Zeros."""
        del memory
        return RecurrentState(tuple(cell.zero_state(batch_size) for (cell,) in self.layers.layers), None)

    def forward(
        self,
        tokens: IntArray,
        memory: None,
        state: RecurrentState,
        *,
        mask: BoolArray | None = None,
        need_attention: bool = False,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, RecurrentState, None], RecurrentLanguageDecoderCache]:
        """Decode ids (B, n): the logits (B, n, V), the state after the tokens, no attention; and a cache."""
        del memory, need_attention
        rate, is_shared = self.settings.dropout, self.is_variational
        x, embedding = self.embedding.forward(tokens, rng)  # (1)
        x, dropped = ops.dropout_forward(x, rate if is_shared else 0.0, rng, is_shared=is_shared)  # (2)
        (hidden, last), layers = self.layers.forward(x, state.layers, mask, rng)  # (3)
        hidden, output_dropped = ops.dropout_forward(hidden, rate, rng, is_shared=is_shared)  # (4)
        logits, output = self.output.forward(hidden)  # (5)
        cache = RecurrentLanguageDecoderCache(embedding, dropped, layers, output_dropped, output)
        return (logits, RecurrentState(last, None), None), cache

    def backward(self, d_logits: FloatArray, cache: RecurrentLanguageDecoderCache) -> tuple[None, Gradients]:
        """No memory to have a gradient, and parameter gradients; start and last state are taken as given."""
        d_hidden, gradients = self.output.backward(d_logits, cache.output)  # (5)
        d_hidden = ops.dropout_backward(d_hidden, cache.output_dropped)  # (4)
        d_x, _, found = self.layers.backward(d_hidden, None, cache.layers)  # (3)
        accumulate(gradients, named("layers", found))
        d_x = ops.dropout_backward(d_x, cache.dropped)  # (2)
        accumulate(gradients, named("embedding", self.embedding.backward(d_x, cache.embedding)))  # (1)
        return None, gradients
