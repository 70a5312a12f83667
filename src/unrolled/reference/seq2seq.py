"""Encoder–decoder: any encoder with any decoder, behind the one decoder contract."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled import config
from unrolled.errors import ShapeError
from unrolled.parameters import Sizes, inventory
from unrolled.reference import ops
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, accumulate, named, under
from unrolled.reference.recurrent_decoder import RecurrentDecoder
from unrolled.reference.recurrent_encoder import RecurrentEncoder
from unrolled.reference.transformer_decoder import TransformerDecoder
from unrolled.reference.transformer_encoder import TransformerEncoder

__all__ = ["DecoderOutput", "LossAndGradients", "Seq2Seq", "build"]

_PAD = 0


class DecoderOutput(NamedTuple):
    """Result of `decode`: logits (R, n, V), the state after the tokens, and on request the attention (R, n, S)."""

    logits: FloatArray
    state: Any
    attention: FloatArray | None


class LossAndGradients(NamedTuple):
    """Sums over the labels of a batch: the loss in nats, how many labels, and ∂L/∂ of each parameter.

    Sums of several batches may be added; divide by the number of labels of them all.
    """

    loss: float
    num_labels: int
    gradients: Gradients


class Batch(Protocol):
    """What training reads of a batch; see `unrolled.text.Batch`."""

    @property
    def source(self) -> IntArray:
        """Ids (B, S)."""

    @property
    def source_mask(self) -> BoolArray:
        """Real source tokens (B, S)."""

    @property
    def inputs(self) -> IntArray:
        """Decoder inputs (B, T)."""

    @property
    def labels(self) -> IntArray:
        """Decoder labels (B, T), PAD where there is none."""


class Seq2SeqCache(NamedTuple):
    """What `Seq2Seq.backward` needs."""

    encoder: Any
    prepared: Any
    decoder: Any
    loss: ops.CrossEntropyCache


class Seq2Seq:
    """A model of P(y | x) = Π_t P(y_t | y_<t, x).

    Parameters
    ----------
    settings : config.Seq2Seq
    sizes : Sizes
        Vocabulary sizes.
    parameters : dict of arrays
        Those of the inventory; kept, not copied.

    Notes
    -----
    `decode` on n tokens equals n calls on one token each, and any chunking. It never changes a state.
    """

    def __init__(self, settings: config.Seq2Seq, sizes: Sizes, parameters: Weights) -> None:
        self.parameters = parameters
        self.encoder: Any = (
            RecurrentEncoder(settings.encoder, sizes, under(parameters, "encoder"))
            if isinstance(settings.encoder, config.RecurrentEncoder)
            else TransformerEncoder(settings.encoder, sizes, under(parameters, "encoder"))
        )
        self.decoder: Any = (
            RecurrentDecoder(settings.decoder, settings.encoder, under(parameters, "decoder"))
            if isinstance(settings.decoder, config.RecurrentDecoder)
            else TransformerDecoder(settings.decoder, settings.encoder, under(parameters, "decoder"))
        )

    # --- the decoder contract ----------------------------------------------------------------------------------------

    def encode(self, source: IntArray, source_mask: BoolArray) -> Any:
        """Encode a batch of sources and compute once what the decoder needs of them.

        Parameters
        ----------
        source : (B, S) int array
            Symbols, the end symbol, then features.
        source_mask : (B, S) bool array
            True = real token; right-padded.
        """
        encoded, _ = self.encoder.forward(source, source_mask)
        return self.decoder.prepare(encoded)[0]

    def initial_state(self, memory: Any, batch_size: int) -> Any:
        """State before the first token of `batch_size` rows, a multiple of the number of sources."""
        return self.decoder.initial_state(memory, batch_size)

    def decode(
        self,
        tokens: IntArray,
        memory: Any,
        state: Any,
        *,
        mask: BoolArray | None = None,
        reset: BoolArray | None = None,
        need_attention: bool = False,
    ) -> DecoderOutput:
        """Feed n ≥ 1 tokens a row and predict the one after each.

        Parameters
        ----------
        tokens : (R, n) int array
            R is a multiple of the number of sources: row r reads memory r // k.
        memory, state
            From `encode`, and from `initial_state` or an earlier call.
        mask : (R, n) bool array, optional
            Right-padded real tokens; state and positions advance by these alone.
        reset : (R, n) bool array, optional
            Tokens before which the row returns to its start.
        need_attention : bool
            Return the weights over the source; asking changes nothing else.
        """
        if reset is None:
            output, _ = self.decoder.forward(tokens, memory, state, mask=mask, need_attention=need_attention)
            return DecoderOutput(*output)
        start = self.initial_state(memory, len(tokens))
        outputs = []
        for part in _segments(reset):
            state = state.restarted(reset[:, part.start], start)
            real = None if mask is None else mask[:, part]
            outputs.append(self.decode(tokens[:, part], memory, state, mask=real, need_attention=need_attention))
            state = outputs[-1].state
        weights = [output.attention for output in outputs if output.attention is not None]
        attention = np.concatenate(weights, axis=1) if weights else None
        return DecoderOutput(np.concatenate([output.logits for output in outputs], axis=1), state, attention)

    # --- training ----------------------------------------------------------------------------------------------------

    def forward(
        self,
        source: IntArray,
        source_mask: BoolArray,
        inputs: IntArray,
        labels: IntArray,
        *,
        label_smoothing: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> tuple[FloatArray, Seq2SeqCache]:
        """Loss of a batch under teacher forcing: a 0-d array, nats, summed over its labels."""
        encoded, encoder = self.encoder.forward(source, source_mask, rng)  # (1)
        memory, prepared = self.decoder.prepare(encoded)  # (2)
        state = self.decoder.initial_state(memory, len(inputs))
        (logits, _, _), decoder = self.decoder.forward(inputs, memory, state, rng=rng)  # (3)
        loss, cross_entropy = ops.cross_entropy_forward(
            logits, labels, labels != _PAD, smoothing=label_smoothing
        )  # (4)
        return loss, Seq2SeqCache(encoder, prepared, decoder, cross_entropy)

    def backward(self, d_loss: FloatArray | float, cache: Seq2SeqCache) -> Gradients:
        """∂L/∂ of each parameter, by its name in the inventory."""
        d_logits = ops.cross_entropy_backward(d_loss, cache.loss)  # (4)
        d_memory, of_steps = self.decoder.backward(d_logits, cache.decoder)  # (3)
        d_encoded, of_memory = self.decoder.prepare_backward(d_memory, cache.prepared)  # (2)
        of_encoder = self.encoder.backward(d_encoded, cache.encoder)  # (1)
        of_decoder = {**of_steps}
        accumulate(of_decoder, of_memory)  # the layers' cross-attention has a part in both
        return {**named("encoder", of_encoder), **named("decoder", of_decoder)}

    def loss_and_gradients(
        self, batch: Batch, *, label_smoothing: float = 0.0, rng: np.random.Generator | None = None
    ) -> LossAndGradients:
        """Loss and gradients of a batch, summed over its labels.

        Parameters
        ----------
        batch : Batch
        label_smoothing : float
            ε of (1 − ε) · one-hot + ε / V.
        rng : Generator, optional
            Where dropout masks are drawn from; without it there is no dropout.
        """
        loss, cache = self.forward(
            batch.source, batch.source_mask, batch.inputs, batch.labels, label_smoothing=label_smoothing, rng=rng
        )
        return LossAndGradients(float(loss), int((batch.labels != _PAD).sum()), self.backward(1.0, cache))


def build(settings: config.Model, sizes: Sizes, weights: Weights) -> Seq2Seq:
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
    return Seq2Seq(settings, sizes, weights)


def _segments(reset: BoolArray) -> list[slice]:
    """Runs of columns that no row resets within."""
    starts = [0, *(int(column) for column in np.flatnonzero(reset.any(axis=0)) if column)]
    return [slice(begin, end) for begin, end in zip(starts, [*starts[1:], reset.shape[1]], strict=True)]
