"""The inventory of a model's weights: each name, shape and start value, declared once for both engines.

`inventory` turns a model's settings into an ordered tuple of `Parameter`; `initialise` draws them all in NumPy. The
PyTorch and the NumPy engine are built from the same arrays, so they start bit-identical, weights need no conversion,
and a saved model opens in either. Every parameter has a random stream of its own (seed and name), so adding one never
changes another.

Conventions: a product is ``x @ weight.T + bias`` (rows are outputs); LSTM gates are stacked i f g o, GRU gates r z n.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unrolled import config
from unrolled.config import memory_size

__all__ = ["NUM_GATES", "Constant", "ForgetBias", "Normal", "Orthogonal", "Parameter", "Sizes", "Xavier"]
__all__ += ["initialise", "inventory"]

NUM_GATES = {"lstm": 4, "gru": 3}
"""Gates of each cell: the rows of its weights are that many times `hidden_size`."""


class Sizes(NamedTuple):
    """Vocabulary sizes: source (features included), features (the last ids of the source), target."""

    source: int
    features: int
    target: int


# --- start values ----------------------------------------------------------------------------------------------------


class Initialiser(Protocol):
    """A distribution of start values."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Values of one parameter."""


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float = 0.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Fill the shape."""
        del rng
        return np.full(shape, self.value)


@dataclass(frozen=True)
class Normal:
    """Zero mean, given standard deviation."""

    std: float

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw independently."""
        return rng.normal(0.0, self.std, shape)


@dataclass(frozen=True)
class Xavier:
    """Uniform ±√(6 / (fan_in + fan_out)) for each of `blocks` stacked matrices (Glorot & Bengio 2010)."""

    blocks: int = 1

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw independently, with the fans of one block."""
        fan_out, fan_in = shape[0] // self.blocks, shape[-1] if len(shape) > 1 else 1
        bound = math.sqrt(6.0 / (fan_in + fan_out))
        return rng.uniform(-bound, bound, shape)


@dataclass(frozen=True)
class Orthogonal:
    """Each of `blocks` stacked square matrices is a random orthogonal one (Saxe et al. 2014)."""

    blocks: int = 1

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """QR of a normal matrix a block, signs fixed so that the draw is uniform."""
        rows = shape[0] // self.blocks
        q, r = np.linalg.qr(rng.normal(size=(self.blocks, rows, shape[1])))
        signs: NDArray[np.float64] = np.sign(np.diagonal(r, axis1=1, axis2=2))
        return np.reshape(q * signs[:, None, :], shape)


@dataclass(frozen=True)
class ForgetBias:
    """Zero but for the forget gate of an LSTM (second of four blocks); Jozefowicz et al. 2015.

    It stands in the input bias alone: the layer adds two biases, and the effective value must be `value`, not twice
    that.
    """

    value: float = 1.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Fill the second quarter."""
        del rng
        bias = np.zeros(shape)
        quarter = shape[0] // 4
        bias[quarter : 2 * quarter] = self.value
        return bias


class Parameter(NamedTuple):
    """One entry of the inventory."""

    name: str
    shape: tuple[int, ...]
    initialiser: Initialiser


def initialise(parameters: tuple[Parameter, ...], seed: int) -> dict[str, NDArray[np.float32]]:
    """Draw the start values of all parameters in float64 and round them to float32.

    Parameters
    ----------
    parameters : tuple of Parameter
    seed : int
        With the parameter's name, it decides the values; order and other parameters do not.
    """
    return {
        name: init.draw(np.random.default_rng([seed, zlib.crc32(name.encode())]), shape).astype(np.float32)
        for name, shape, init in parameters
    }


# --- layers ----------------------------------------------------------------------------------------------------------


def _linear(name: str, inputs: int, outputs: int, *, bias: bool = True, blocks: int = 1) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (outputs, inputs), Xavier(blocks))
    if bias:
        yield Parameter(f"{name}.bias", (outputs,), Constant())


def _norm(name: str, width: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (width,), Constant(1.0))
    yield Parameter(f"{name}.bias", (width,), Constant())


def _cell(name: str, cell: config.Cell, inputs: int, hidden: int) -> Iterator[Parameter]:
    gates = NUM_GATES[cell]
    yield Parameter(f"{name}.weight_ih", (gates * hidden, inputs), Xavier(gates))
    yield Parameter(f"{name}.weight_hh", (gates * hidden, hidden), Orthogonal(gates))
    yield Parameter(f"{name}.bias_ih", (gates * hidden,), ForgetBias() if cell == "lstm" else Constant())
    yield Parameter(f"{name}.bias_hh", (gates * hidden,), Constant())


def _recurrent(
    name: str, cell: config.Cell, inputs: int, hidden: int, layers: int, *, both: bool
) -> Iterator[Parameter]:
    directions = ("fwd", "bwd") if both else ("fwd",)
    for layer in range(layers):
        for direction in directions:
            yield from _cell(f"{name}.{layer}.{direction}", cell, inputs, hidden)
        inputs = hidden * len(directions)


def _feed_forward(name: str, d_model: int, d_ff: int) -> Iterator[Parameter]:
    yield from _linear(f"{name}.up", d_model, d_ff)
    yield from _linear(f"{name}.down", d_ff, d_model)


# --- encoders --------------------------------------------------------------------------------------------------------


def _recurrent_encoder(settings: config.RecurrentEncoder, sizes: Sizes) -> Iterator[Parameter]:
    yield Parameter("encoder.embedding.weight", (sizes.source, settings.embedding_dim), Normal(0.1))
    yield from _recurrent(
        "encoder.layers",
        settings.cell,
        settings.embedding_dim,
        settings.hidden_size,
        settings.num_layers,
        both=settings.is_bidirectional,
    )
    if sizes.features:
        yield Parameter("encoder.feature_type", (settings.embedding_dim,), Normal(0.1))
        yield from _linear("encoder.features", settings.embedding_dim, memory_size(settings))


def _transformer_encoder(settings: config.TransformerEncoder, sizes: Sizes) -> Iterator[Parameter]:
    D = settings.d_model
    yield Parameter("encoder.embedding.weight", (sizes.source, D), Normal(1.0))
    if sizes.features:
        yield Parameter("encoder.feature_type", (D,), Normal(1.0))
    for layer in range(settings.num_layers):
        name = f"encoder.layers.{layer}"
        yield from _norm(f"{name}.norm1", D)
        yield from _linear(f"{name}.attention.qkv", D, 3 * D, blocks=3)
        yield from _linear(f"{name}.attention.out", D, D)
        yield from _norm(f"{name}.norm2", D)
        yield from _feed_forward(f"{name}.ff", D, settings.d_ff)
    yield from _norm("encoder.norm", D)


# --- decoders --------------------------------------------------------------------------------------------------------


def _start(encoder: config.Encoder, decoder: config.RecurrentDecoder) -> Iterator[Parameter]:
    """Projections of the encoder's final states; none where sizes, cells and directions already agree."""
    if starts_directly(encoder, decoder):
        return
    width = memory_size(encoder)
    for layer in range(decoder.num_layers):
        yield from _linear(f"decoder.start.{layer}.h", width, decoder.hidden_size)
        if decoder.cell == "lstm":
            yield from _linear(f"decoder.start.{layer}.c", width, decoder.hidden_size)


def starts_directly(encoder: config.Encoder, decoder: config.RecurrentDecoder) -> bool:
    """Whether the encoder's final states are the decoder's start states as they are."""
    return (
        isinstance(encoder, config.RecurrentEncoder)
        and not encoder.is_bidirectional
        and (encoder.cell, encoder.hidden_size, encoder.num_layers)
        == (decoder.cell, decoder.hidden_size, decoder.num_layers)
    )


def _attention(score: str, memory: int, hidden: int) -> Iterator[Parameter]:
    """Weights of a recurrent decoder's attention: its score, and the layer that joins context and state."""
    if score == "none":
        return
    if score == "general":
        yield from _linear("decoder.attention.key", memory, hidden, bias=False)
    if score == "additive":
        yield from _linear("decoder.attention.query", hidden, hidden, bias=False)
        yield from _linear("decoder.attention.key", memory, hidden, bias=False)
        yield Parameter("decoder.attention.v", (hidden,), Xavier())
    yield from _linear("decoder.combine", memory + hidden, hidden)


def _recurrent_decoder(settings: config.RecurrentDecoder, encoder: config.Encoder, sizes: Sizes) -> Iterator[Parameter]:
    hidden = settings.hidden_size
    yield Parameter("decoder.embedding.weight", (sizes.target, settings.embedding_dim), Normal(0.1))
    yield from _recurrent(
        "decoder.layers", settings.cell, settings.embedding_dim, hidden, settings.num_layers, both=False
    )
    yield from _start(encoder, settings)
    yield from _attention(settings.attention, memory_size(encoder), hidden)
    yield from _linear("decoder.output", hidden, sizes.target)


def _transformer_decoder(
    settings: config.TransformerDecoder, encoder: config.Encoder, sizes: Sizes
) -> Iterator[Parameter]:
    D = settings.d_model
    yield Parameter("decoder.embedding.weight", (sizes.target, D), Normal(1.0))
    for layer in range(settings.num_layers):
        name = f"decoder.layers.{layer}"
        yield from _norm(f"{name}.norm1", D)
        yield from _linear(f"{name}.attention.qkv", D, 3 * D, blocks=3)
        yield from _linear(f"{name}.attention.out", D, D)
        yield from _norm(f"{name}.norm2", D)
        yield from _linear(f"{name}.cross.query", D, D)
        yield from _linear(f"{name}.cross.kv", memory_size(encoder), 2 * D, blocks=2)
        yield from _linear(f"{name}.cross.out", D, D)
        yield from _norm(f"{name}.norm3", D)
        yield from _feed_forward(f"{name}.ff", D, settings.d_ff)
    yield from _norm("decoder.norm", D)
    yield from _linear("decoder.output", D, sizes.target)


def inventory(model: config.Model, sizes: Sizes) -> tuple[Parameter, ...]:
    """Declare every parameter of a model, in a fixed order.

    Parameters
    ----------
    model : config.Model
    sizes : Sizes
        Vocabulary sizes.
    """
    encoder, decoder = model.encoder, model.decoder
    parts: list[Iterator[Parameter]] = [
        _recurrent_encoder(encoder, sizes)
        if isinstance(encoder, config.RecurrentEncoder)
        else _transformer_encoder(encoder, sizes),
        _recurrent_decoder(decoder, encoder, sizes)
        if isinstance(decoder, config.RecurrentDecoder)
        else _transformer_decoder(decoder, encoder, sizes),
    ]
    return tuple(parameter for part in parts for parameter in part)
