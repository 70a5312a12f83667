"""Encoder–decoder: any encoder with any decoder, behind the one decoder contract."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled import config
from unrolled.parameters import Sizes
from unrolled.reference import ops
from unrolled.reference.autoregressive import Autoregressive, LossAndGradients
from unrolled.reference.convolution import ConvolutionDecoder, ConvolutionEncoder
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, accumulate, named, under
from unrolled.reference.recurrent_decoder import RecurrentDecoder
from unrolled.reference.recurrent_encoder import RecurrentEncoder
from unrolled.reference.transformer_decoder import TransformerDecoder
from unrolled.reference.transformer_encoder import TransformerEncoder

__all__ = ["Seq2Seq"]

_PAD = 0


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


class Seq2Seq(Autoregressive):
    """A model of P(y | x) = Π_t P(y_t | y_<t, x).

    Parameters
    ----------
    settings : config.Seq2Seq
    sizes : Sizes
        Vocabulary sizes.
    parameters : dict of arrays
        Those of the inventory; kept, not copied.
    """

    def __init__(self, settings: config.Seq2Seq, sizes: Sizes, parameters: Weights) -> None:
        self.parameters = parameters
        if settings.share_embeddings:
            parameters = {**parameters, "encoder.embedding.weight": parameters["decoder.embedding.weight"]}
        self.encoder = _encoder(settings.encoder, sizes, under(parameters, "encoder"))
        self.decoder = _decoder(settings, under(parameters, "decoder"))

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
        if "encoder.embedding.weight" not in self.parameters:  # shared: it is the decoder's
            accumulate(of_decoder, {"embedding.weight": of_encoder.pop("embedding.weight")})
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


def _encoder(settings: config.Encoder, sizes: Sizes, parameters: Weights) -> Any:
    if isinstance(settings, config.RecurrentEncoder):
        return RecurrentEncoder(settings, sizes, parameters)
    if isinstance(settings, config.TransformerEncoder):
        return TransformerEncoder(settings, sizes, parameters)
    return ConvolutionEncoder(settings, sizes, parameters)


def _decoder(settings: config.Seq2Seq, parameters: Weights) -> Any:
    if isinstance(settings.decoder, config.RecurrentDecoder):
        return RecurrentDecoder(settings.decoder, settings.encoder, parameters)
    if isinstance(settings.decoder, config.TransformerDecoder):
        return TransformerDecoder(settings.decoder, parameters)
    return ConvolutionDecoder(settings.decoder, parameters)
