"""Recurrent decoder: start states, embedding, a wiring of attention, and the output layer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unrolled import config
from unrolled.parameters import starts_directly
from unrolled.reference import ops
from unrolled.reference.cells import cell_type
from unrolled.reference.encoded import Encoded
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, accumulate, named, under
from unrolled.reference.layers import Embedding, Output
from unrolled.reference.recurrence import Recurrent
from unrolled.reference.scores import SCORES
from unrolled.reference.starts import DirectStart, LearnedStart, ProjectedStart, Start, StartCache
from unrolled.reference.states import added, mapped
from unrolled.reference.wirings import (
    Bahdanau,
    FixedVector,
    InputFeeding,
    Luong,
    RecurrentMemory,
    RecurrentState,
    Wiring,
)

__all__ = ["RecurrentDecoder"]

_WIRINGS: dict[str, type[Luong | InputFeeding | Bahdanau]] = {
    "luong": Luong,
    "luong_input_feeding": InputFeeding,
    "bahdanau": Bahdanau,
}


class PrepareCache(NamedTuple):
    """What `RecurrentDecoder.prepare_backward` needs."""

    encoded: Encoded
    keys: Any
    start: StartCache


class RecurrentDecoderCache(NamedTuple):
    """What `RecurrentDecoder.backward` needs."""

    embedding: Any
    wiring: Any
    dropped: FloatArray | None
    output: ops.LinearCache


class RecurrentDecoder:
    """Recurrent layers over the target that read the source by a wiring, then ``logits = W_s feature + b``.

    Parameters
    ----------
    settings : config.RecurrentDecoder
    encoder : config.Encoder
    parameters : dict
        Named as in the inventory, without ``decoder.``.
    """

    def __init__(self, settings: config.RecurrentDecoder, encoder: config.Encoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.settings = settings
        self.embedding = Embedding(under(parameters, "embedding"), dropout=settings.dropout)
        layers = Recurrent.from_parameters(cell_type(settings), under(parameters, "layers"), dropout=settings.dropout)
        self.wiring: Wiring = FixedVector(layers)
        if settings.attention != "none":
            score = SCORES[settings.attention](under(parameters, "attention"))
            self.wiring = _WIRINGS[settings.wiring](layers, score, under(parameters, "combine"))
        self.start = _start(settings, encoder, under(parameters, "start"))
        self.output = Output(parameters)

    # --- once a source -----------------------------------------------------------------------------------------------

    def prepare(self, encoded: Encoded) -> tuple[RecurrentMemory, PrepareCache]:
        """Compute once a source what every step needs."""
        keys, keys_cache = None, None
        if self.wiring.score is not None:
            keys, keys_cache = self.wiring.score.keys(encoded.output)
        start, start_cache = self.start.forward(encoded)
        vector = encoded.summaries()[-1][0] if self.settings.vector_every_step else None
        memory = RecurrentMemory(encoded.output, encoded.mask, keys, vector, start)
        return memory, PrepareCache(encoded, keys_cache, start_cache)

    def prepare_backward(self, d_memory: RecurrentMemory, cache: PrepareCache) -> tuple[Encoded, Gradients]:
        """∂L/∂encoded and parameter gradients."""
        d_encoded, found = self.start.backward(d_memory.start, cache.start)
        gradients = named("start", found)
        d_output = d_encoded.output + d_memory.output
        if self.wiring.score is not None:
            assert d_memory.keys is not None
            d_from_keys, found = self.wiring.score.keys_backward(d_memory.keys, cache.keys)
            d_output = d_output + d_from_keys
            gradients.update(named("attention", found))
        d_encoded = d_encoded._replace(output=d_output)
        if d_memory.vector is not None:
            d_encoded = _add_vector(d_encoded, d_memory.vector, cache.encoded)
        return d_encoded, gradients

    # --- steps -------------------------------------------------------------------------------------------------------

    def initial_state(self, memory: RecurrentMemory, batch_size: int) -> RecurrentState:
        """Start of `batch_size` rows, k = batch_size / B of them a source."""
        beams = batch_size // len(memory.mask)
        start = mapped(lambda part: np.repeat(part, beams, axis=0), memory.start)
        is_fed = self.settings.wiring == "luong_input_feeding"
        return RecurrentState(start, np.zeros_like(start[-1].h) if is_fed else None)

    def forward(
        self,
        tokens: IntArray,
        memory: RecurrentMemory,
        state: RecurrentState,
        *,
        mask: BoolArray | None = None,
        need_attention: bool = False,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, RecurrentState, FloatArray | None], RecurrentDecoderCache]:
        """Decode ids (R, n); R is a multiple of the number of sources.

        Returns
        -------
        (logits, state, attention) : (R, n, V) array, the state after the tokens, (R, n, S) array or None
        cache : RecurrentDecoderCache
        """
        x, embedding = self.embedding.forward(tokens, rng)  # (1)
        (features, weights, last), wiring = self.wiring.forward(x, memory, state, mask, rng)  # (2)
        features, dropped = ops.dropout_forward(features, self.settings.dropout, rng)  # (3)
        logits, output = self.output.forward(features)  # (4)
        attention = weights if need_attention else None
        return (logits, last, attention), RecurrentDecoderCache(embedding, wiring, dropped, output)

    def backward(self, d_logits: FloatArray, cache: RecurrentDecoderCache) -> tuple[RecurrentMemory, Gradients]:
        """∂L/∂memory, the start state included, and parameter gradients.

        Of a forward pass without a mask from `initial_state`, one row a source; the last state matters no more.
        """
        gradients: Gradients = {}
        d_features, found = self.output.backward(d_logits, cache.output)  # (4)
        accumulate(gradients, found)
        d_features = ops.dropout_backward(d_features, cache.dropped)  # (3)
        d_x, d_memory, found = self.wiring.backward(d_features, cache.wiring)  # (2)
        accumulate(gradients, found)
        accumulate(gradients, named("embedding", self.embedding.backward(d_x, cache.embedding)))  # (1)
        return d_memory, gradients


def _add_vector(d_encoded: Encoded, d_vector: FloatArray, encoded: Encoded) -> Encoded:
    """Add the gradient of the fixed vector, the h of the top summary."""
    d_summaries = [[np.zeros_like(part) for part in summary] for summary in encoded.summaries()]
    d_summaries[-1][0] += d_vector
    d_from_vector = encoded.summaries_backward(d_summaries)
    finals = added(d_encoded.finals, d_from_vector.finals)
    return encoded._replace(output=d_encoded.output + d_from_vector.output, finals=finals)


def _start(settings: config.RecurrentDecoder, encoder: config.Encoder, parameters: Weights) -> Start:
    if settings.start == "learned":
        return LearnedStart(parameters)
    return DirectStart() if starts_directly(encoder, settings) else ProjectedStart(parameters)
