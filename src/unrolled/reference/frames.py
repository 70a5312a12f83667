"""Models of vectors: recurrent layers read them as they are, and a head says what the outputs mean."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled import config
from unrolled.reference import ops
from unrolled.reference.autoregressive import Autoregressive, LossAndGradients
from unrolled.reference.cells import cell_type
from unrolled.reference.heads import HEADS
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, Weights, named, under
from unrolled.reference.layers import Linear
from unrolled.reference.recurrence import Recurrent, RecurrentCache
from unrolled.reference.wirings import RecurrentState

__all__ = ["FrameDecoder", "Frames"]


class Batch(Protocol):
    """What training reads of a batch; see `unrolled.text.FrameBatch`."""

    @property
    def inputs(self) -> FloatArray:
        """Vectors (B, T, F)."""

    @property
    def labels(self) -> Any:
        """What the head expects beside each vector: ids (B, T), or numbers (B, T, O)."""

    @property
    def counted(self) -> BoolArray:
        """Places that have a label (B, T)."""


class FramesCache(NamedTuple):
    """What `Frames.backward` needs."""

    decoder: Any
    head: Any


class Frames(Autoregressive):
    """A model of P(y_t | x_1 … x_t): nothing is encoded, and the memory is None.

    `decode` takes vectors (B, n, F) where other models take ids (B, n), and its "logits" are whatever the head reads.

    Parameters
    ----------
    settings : config.Frames
    parameters : dict of arrays
        Those of the inventory; kept, not copied.
    """

    def __init__(self, settings: config.Frames, parameters: Weights) -> None:
        self.parameters = parameters
        self.head = HEADS[settings.head]
        self.decoder = FrameDecoder(settings.decoder, under(parameters, "decoder"))

    def forward(
        self, inputs: FloatArray, labels: Any, counted: BoolArray, *, rng: np.random.Generator | None = None
    ) -> tuple[FloatArray, FramesCache]:
        """Loss of a batch: a 0-d array, summed over the places that count."""
        state = self.initial_state(None, len(inputs))
        (outputs, _, _), decoder = self.decoder.forward(inputs, None, state, rng=rng)  # (1)
        loss, head = self.head.forward(outputs, labels, counted)  # (2)
        return loss, FramesCache(decoder, head)

    def backward(self, d_loss: FloatArray | float, cache: FramesCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂inputs, and ∂L/∂ of each parameter by its name in the inventory."""
        d_outputs = self.head.backward(d_loss, cache.head)  # (2)
        d_inputs, gradients = self.decoder.backward(d_outputs, cache.decoder)  # (1)
        return d_inputs, named("decoder", gradients)

    def loss_and_gradients(self, batch: Batch, *, rng: np.random.Generator | None = None) -> LossAndGradients:
        """Loss and gradients of a batch, summed over the places that count; dropout where `rng` is given."""
        loss, cache = self.forward(batch.inputs, batch.labels, batch.counted, rng=rng)
        return LossAndGradients(float(loss), int(batch.counted.sum()), self.backward(1.0, cache)[1])


class FrameDecoderCache(NamedTuple):
    """What `FrameDecoder.backward` needs."""

    layers: RecurrentCache
    dropped: FloatArray | None
    output: ops.LinearCache


class FrameDecoder:
    """Recurrent layers from a zero state, and an output layer.

    Parameters
    ----------
    settings : config.FrameDecoder
    parameters : dict
        Named as in the inventory, without ``decoder.``.
    """

    def __init__(self, settings: config.FrameDecoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.dropout = settings.dropout
        self.layers = Recurrent.from_parameters(
            cell_type(settings), under(parameters, "layers"), dropout=settings.dropout
        )
        self.output = Linear(under(parameters, "output"))

    def initial_state(self, memory: None, batch_size: int) -> RecurrentState:
        """Zeros."""
        del memory
        return RecurrentState(tuple(cell.zero_state(batch_size) for (cell,) in self.layers.layers), None)

    def forward(
        self,
        tokens: FloatArray,
        memory: None,
        state: RecurrentState,
        *,
        mask: BoolArray | None = None,
        need_attention: bool = False,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, RecurrentState, None], FrameDecoderCache]:
        """Read vectors (B, n, F): the outputs (B, n, O), the state after them, no attention; and a cache."""
        del memory, need_attention
        (hidden, last), layers = self.layers.forward(tokens, state.layers, mask, rng)  # (1)
        hidden, dropped = ops.dropout_forward(hidden, self.dropout, rng)  # (2)
        outputs, output = self.output.forward(hidden)  # (3)
        return (outputs, RecurrentState(last, None), None), FrameDecoderCache(layers, dropped, output)

    def backward(self, d_outputs: FloatArray, cache: FrameDecoderCache) -> tuple[FloatArray, Gradients]:
        """∂L/∂ of the vectors and parameter gradients; start and last state are taken as given."""
        d_hidden, output = self.output.backward(d_outputs, cache.output)  # (3)
        d_hidden = ops.dropout_backward(d_hidden, cache.dropped)  # (2)
        d_x, _, layers = self.layers.backward(d_hidden, None, cache.layers)  # (1)
        return d_x, {**named("output", output), **named("layers", layers)}
