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
from unrolled.errors import ConfigError, ShapeError

__all__ = [
    "Constant",
    "ForgetBias",
    "Normal",
    "Orthogonal",
    "Parameter",
    "Sizes",
    "Xavier",
    "initialise",
    "input_size",
    "inventory",
    "num_gates",
    "starts_directly",
]


class Sizes(NamedTuple):
    """Vocabulary sizes: source (features included), features (the last ids of the source), target.

    Of models that read vectors: the width of an input, 0, and the number of outputs.
    """

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


def num_gates(settings: config.Cells) -> int:
    """Gates of a cell, candidate included: its weights have that many times `hidden_size` rows."""
    if settings.cell == "lstm":
        return 4 if settings.forget_gate else 3
    return 3 if settings.cell == "gru" else 1


def _cell(name: str, settings: config.Cells, inputs: int) -> Iterator[Parameter]:
    gates, hidden = num_gates(settings), settings.hidden_size
    yield Parameter(f"{name}.weight_ih", (gates * hidden, inputs), Xavier(gates))
    yield Parameter(f"{name}.weight_hh", (gates * hidden, hidden), Orthogonal(gates))
    yield Parameter(f"{name}.bias_ih", (gates * hidden,), ForgetBias() if gates == 4 else Constant())
    yield Parameter(f"{name}.bias_hh", (gates * hidden,), Constant())


def _recurrent(name: str, settings: config.Cells, inputs: int, *, both: bool) -> Iterator[Parameter]:
    directions = ("fwd", "bwd") if both else ("fwd",)
    for layer in range(settings.num_layers):
        for direction in directions:
            yield from _cell(f"{name}.{layer}.{direction}", settings, inputs)
        inputs = settings.hidden_size * len(directions)


def _feed_forward(name: str, settings: config.Transformer) -> Iterator[Parameter]:
    if settings.activation == "swiglu":
        yield from _linear(f"{name}.gate", settings.d_model, settings.d_ff)
    yield from _linear(f"{name}.up", settings.d_model, settings.d_ff)
    yield from _linear(f"{name}.down", settings.d_ff, settings.d_model)


def _self_attention(name: str, settings: config.Transformer) -> Iterator[Parameter]:
    yield from _linear(f"{name}.qkv", settings.d_model, 3 * settings.d_model, blocks=3)
    yield from _linear(f"{name}.out", settings.d_model, settings.d_model)


def _embedding(name: str, settings: config.Transformer, symbols: int, *, std: float) -> Iterator[Parameter]:
    yield Parameter(f"{name}.embedding.weight", (symbols, settings.d_model), Normal(std))
    if settings.positions == "learned":
        yield Parameter(f"{name}.positions.weight", (settings.max_positions, settings.d_model), Normal(std))


def _features(name: str, sizes: Sizes, embedding_dim: int, memory: int, *, std: float) -> Iterator[Parameter]:
    """Features that stand beside the symbols, as entries of the memory."""
    if sizes.features:
        yield Parameter(f"{name}.feature_type", (embedding_dim,), Normal(std))
        yield from _linear(f"{name}.features", embedding_dim, memory)


def _cross_attention(name: str, width: int, memory: int) -> Iterator[Parameter]:
    yield from _linear(f"{name}.query", width, width)
    yield from _linear(f"{name}.kv", memory, 2 * width, blocks=2)
    yield from _linear(f"{name}.out", width, width)


RECURRENT_STD = 0.3
"""Of embeddings that recurrent layers read: from smaller ones the first states hardly tell positions apart, so that
attention forms late or never; larger ones are learnt by heart."""

TIED_RECURRENT_STD = 0.1
"""Of such an embedding that is the output layer too: states start small, and so do the first logits."""

CONVOLVED_STD = 0.5
"""Of embeddings that are convolved: gates keep the variance of small inputs, and tiny ones learn slowly."""


def _gated_convolution(name: str, settings: config.Convolution) -> Iterator[Parameter]:
    """Rows: values, then gates; columns: the positions that are read, first to last (Gehring et al. 2017, section 3.5).

    The gate lets a quarter of the variance through, which the factor 4 gives back; what dropout adds is taken off.
    """
    inputs = settings.kernel_size * settings.channels
    yield Parameter(
        f"{name}.weight", (2 * settings.channels, inputs), Normal(math.sqrt(4.0 * (1.0 - settings.dropout) / inputs))
    )
    yield Parameter(f"{name}.bias", (2 * settings.channels,), Constant())


# --- encoders --------------------------------------------------------------------------------------------------------


def _recurrent_encoder(settings: config.RecurrentEncoder, sizes: Sizes) -> Iterator[Parameter]:
    E = settings.embedding_dim
    yield Parameter("encoder.embedding.weight", (sizes.source, E), Normal(RECURRENT_STD))
    yield from _recurrent("encoder.layers", settings, E, both=settings.is_bidirectional)
    yield from _features("encoder", sizes, E, memory_size(settings), std=RECURRENT_STD)


def _convolution_encoder(settings: config.ConvolutionEncoder, sizes: Sizes) -> Iterator[Parameter]:
    C = settings.channels
    yield Parameter("encoder.embedding.weight", (sizes.source, C), Normal(CONVOLVED_STD))
    for layer in range(settings.num_layers):
        yield from _gated_convolution(f"encoder.layers.{layer}.conv", settings)
    yield from _features("encoder", sizes, C, C, std=CONVOLVED_STD)


def _transformer_encoder(settings: config.TransformerEncoder, sizes: Sizes) -> Iterator[Parameter]:
    D = settings.d_model
    if settings.window is not None and sizes.features:
        raise ConfigError(
            "model.encoder.window leaves out what stands far away, but features have no position; set"
            " model.encoder.window=none or leave out the features column"
        )
    yield from _embedding("encoder", settings, sizes.source, std=1.0)
    if sizes.features:
        yield Parameter("encoder.feature_type", (D,), Normal(1.0))
    for layer in range(settings.num_layers):
        name = f"encoder.layers.{layer}"
        yield from _norm(f"{name}.norm1", D)
        yield from _self_attention(f"{name}.attention", settings)
        yield from _norm(f"{name}.norm2", D)
        yield from _feed_forward(f"{name}.ff", settings)
    if settings.norm == "pre":
        yield from _norm("encoder.norm", D)


# --- decoders --------------------------------------------------------------------------------------------------------

TIED_STD = 0.02
"""Of an embedding that is the output layer of a stack of blocks too: first logits stay small, first loss near ln V."""


def starts_directly(encoder: config.Encoder, decoder: config.RecurrentDecoder) -> bool:
    """Whether the encoder's final states are the decoder's start states as they are."""
    return (
        isinstance(encoder, config.RecurrentEncoder)
        and not encoder.is_bidirectional
        and (encoder.cell, encoder.hidden_size, encoder.num_layers)
        == (decoder.cell, decoder.hidden_size, decoder.num_layers)
    )


def _start(encoder: config.Encoder, decoder: config.RecurrentDecoder) -> Iterator[Parameter]:
    """Learned start states, or projections of the encoder's final ones where those do not fit as they are."""
    hidden, parts = decoder.hidden_size, ("h", "c") if decoder.cell == "lstm" else ("h",)
    names = [f"decoder.start.{layer}.{part}" for layer in range(decoder.num_layers) for part in parts]
    if decoder.start == "learned":
        yield from (Parameter(name, (hidden,), Constant()) for name in names)
    elif not starts_directly(encoder, decoder):
        for name in names:
            yield from _linear(name, memory_size(encoder), hidden)


def input_size(decoder: config.RecurrentDecoder, memory: int) -> int:
    """Width of a decoder cell's input: the embedding, and behind it what the wiring adds."""
    if decoder.wiring == "luong_input_feeding":
        return decoder.embedding_dim + decoder.hidden_size
    if decoder.wiring == "bahdanau" or decoder.vector_every_step:
        return decoder.embedding_dim + memory
    return decoder.embedding_dim


def _attention(settings: config.RecurrentDecoder, memory: int) -> Iterator[Parameter]:
    """Weights of a recurrent decoder's attention: its score, and the layer that joins context and state."""
    hidden = settings.hidden_size
    if settings.attention == "none":
        return
    if settings.attention == "additive":
        yield from _linear("decoder.attention.query", hidden, hidden, bias=False)
        yield Parameter("decoder.attention.v", (hidden,), Xavier())
    if settings.attention in ("general", "additive"):
        yield from _linear("decoder.attention.key", memory, hidden, bias=False)
    embedding = settings.embedding_dim if settings.wiring == "bahdanau" else 0
    yield from _linear("decoder.combine", memory + hidden + embedding, hidden)


def _output(inputs: int, symbols: int, *, is_tied: bool) -> Iterator[Parameter]:
    if not is_tied:
        yield Parameter("decoder.output.weight", (symbols, inputs), Xavier())
    yield Parameter("decoder.output.bias", (symbols,), Constant())


def _recurrent_decoder(settings: config.RecurrentDecoder, encoder: config.Encoder, sizes: Sizes) -> Iterator[Parameter]:
    memory = memory_size(encoder)
    reads_norms = isinstance(encoder, config.TransformerEncoder)  # its vectors are of size 1 from the start
    std = (TIED_STD if reads_norms else TIED_RECURRENT_STD) if settings.tie_embeddings else RECURRENT_STD
    yield Parameter("decoder.embedding.weight", (sizes.target, settings.embedding_dim), Normal(std))
    yield from _recurrent("decoder.layers", settings, input_size(settings, memory), both=False)
    yield from _start(encoder, settings)
    yield from _attention(settings, memory)
    yield from _output(settings.hidden_size, sizes.target, is_tied=settings.tie_embeddings)


def _recurrent_language_decoder(settings: config.RecurrentLanguageDecoder, sizes: Sizes) -> Iterator[Parameter]:
    std = TIED_RECURRENT_STD if settings.tie_embeddings else RECURRENT_STD
    yield Parameter("decoder.embedding.weight", (sizes.target, settings.embedding_dim), Normal(std))
    yield from _recurrent("decoder.layers", settings, settings.embedding_dim, both=False)
    yield from _output(settings.hidden_size, sizes.target, is_tied=settings.tie_embeddings)


def _transformer_decoder(
    settings: config.TransformerDecoder, encoder: config.Encoder | None, sizes: Sizes
) -> Iterator[Parameter]:
    """Decoder layers; without an encoder there is nothing to attend to but the past (no `norm2`, no `cross`)."""
    D = settings.d_model
    yield from _embedding("decoder", settings, sizes.target, std=TIED_STD if settings.tie_embeddings else 1.0)
    for layer in range(settings.num_layers):
        name = f"decoder.layers.{layer}"
        yield from _norm(f"{name}.norm1", D)
        yield from _self_attention(f"{name}.attention", settings)
        if encoder is not None:
            yield from _norm(f"{name}.norm2", D)
            yield from _cross_attention(f"{name}.cross", D, memory_size(encoder))
        yield from _norm(f"{name}.norm3", D)
        yield from _feed_forward(f"{name}.ff", settings)
    if settings.norm == "pre":
        yield from _norm("decoder.norm", D)
    yield from _output(D, sizes.target, is_tied=settings.tie_embeddings)


def _convolution_decoder(
    settings: config.ConvolutionDecoder, encoder: config.Encoder | None, sizes: Sizes
) -> Iterator[Parameter]:
    C = settings.channels
    std = TIED_STD if settings.tie_embeddings else CONVOLVED_STD
    yield Parameter("decoder.embedding.weight", (sizes.target, C), Normal(std))
    for layer in range(settings.num_layers):
        yield from _gated_convolution(f"decoder.layers.{layer}.conv", settings)
        if encoder is not None:
            yield from _cross_attention(f"decoder.layers.{layer}.cross", C, memory_size(encoder))
    yield from _output(C, sizes.target, is_tied=settings.tie_embeddings)


def inventory(model: config.Model, sizes: Sizes) -> tuple[Parameter, ...]:
    """Declare every parameter of a model, in a fixed order.

    Parameters
    ----------
    model : config.Model
    sizes : Sizes
        Vocabulary sizes.

    Raises
    ------
    ShapeError
        If a shared embedding would have two sizes.
    """
    if isinstance(model, config.Frames):
        return tuple(_frames(model.decoder, sizes))
    parts = _language_model(model, sizes) if isinstance(model, config.LanguageModel) else _seq2seq(model, sizes)
    if isinstance(model, config.Seq2Seq) and model.share_embeddings:  # both sides use the decoder's
        if sizes.source != sizes.target:
            raise ShapeError(
                f"share_embeddings needs one vocabulary, got {sizes.source} source and {sizes.target} target symbols"
            )
        parts = (parameter for parameter in parts if parameter.name != "encoder.embedding.weight")
    return tuple(parts)


def _frames(settings: config.FrameDecoder, sizes: Sizes) -> Iterator[Parameter]:
    yield from _recurrent("decoder.layers", settings, sizes.source, both=False)
    yield from _output(settings.hidden_size, sizes.target, is_tied=False)


def _seq2seq(model: config.Seq2Seq, sizes: Sizes) -> Iterator[Parameter]:
    encoder, decoder = model.encoder, model.decoder
    if isinstance(encoder, config.RecurrentEncoder):
        yield from _recurrent_encoder(encoder, sizes)
    elif isinstance(encoder, config.TransformerEncoder):
        yield from _transformer_encoder(encoder, sizes)
    else:
        yield from _convolution_encoder(encoder, sizes)
    if isinstance(decoder, config.RecurrentDecoder):
        yield from _recurrent_decoder(decoder, encoder, sizes)
    else:
        yield from _layered_decoder(decoder, encoder, sizes)


def _language_model(model: config.LanguageModel, sizes: Sizes) -> Iterator[Parameter]:
    if isinstance(model.decoder, config.RecurrentLanguageDecoder):
        yield from _recurrent_language_decoder(model.decoder, sizes)
    else:
        yield from _layered_decoder(model.decoder, None, sizes)


def _layered_decoder(
    decoder: config.TransformerDecoder | config.ConvolutionDecoder, encoder: config.Encoder | None, sizes: Sizes
) -> Iterator[Parameter]:
    if isinstance(decoder, config.TransformerDecoder):
        yield from _transformer_decoder(decoder, encoder, sizes)
    else:
        yield from _convolution_decoder(decoder, encoder, sizes)
