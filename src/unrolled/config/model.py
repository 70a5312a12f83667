"""Settings of the models: what is built, of what size."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unrolled.config.base import Positive, Rate, Settings

__all__ = [
    "Cells",
    "Convolution",
    "ConvolutionDecoder",
    "ConvolutionEncoder",
    "Decoder",
    "Encoder",
    "FrameDecoder",
    "Frames",
    "LanguageDecoder",
    "LanguageModel",
    "Model",
    "Recurrent",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentLanguageDecoder",
    "Seq2Seq",
    "Transformer",
    "TransformerDecoder",
    "TransformerEncoder",
    "carries_state",
    "dilations",
    "longest_sequence",
    "longest_source",
    "memory_size",
]

Cell = Literal["rnn", "lstm", "gru"]
Score = Literal["dot", "scaled_dot", "general", "additive"]
Positions = Literal["sinusoidal", "learned", "rotary"]


class Cells(Settings):
    """What all recurrent layers have in common."""

    cell: Cell = "lstm"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Of `cell="rnn"` alone."""
    forget_gate: bool = True
    """Of `cell="lstm"` alone: off gives the cell of 1997, an ungated carousel."""
    reset: Literal["after", "before"] = "after"
    """Of `cell="gru"` alone: whether the reset gate acts after the recurrent product (cuDNN) or before it (2014)."""
    hidden_size: Positive = 256
    num_layers: Positive = 1
    dropout: Rate = 0.2
    """On the embeddings, between layers, and on the output."""

    @model_validator(mode="after")
    def _options_belong_to_the_cell(self) -> Self:
        for option, cell, default in (
            ("nonlinearity", "rnn", "tanh"),
            ("forget_gate", "lstm", True),
            ("reset", "gru", "after"),
        ):
            if getattr(self, option) != default and self.cell != cell:
                raise ValueError(f"{option}={getattr(self, option)} is an option of cell={cell}, got cell={self.cell}")
        return self


class Recurrent(Cells):
    """What recurrent layers over symbols have in common."""

    embedding_dim: Positive = 128


class RecurrentEncoder(Recurrent):
    """Recurrent encoder: embedding, then layers of cells in one or two directions; `hidden_size` is of each."""

    type: Literal["recurrent"] = "recurrent"
    is_bidirectional: bool = True
    is_reversed: bool = False
    """Read the source backwards (Sutskever et al. 2014); for one direction alone, two see both ends anyway."""

    @model_validator(mode="after")
    def _one_way_to_reverse(self) -> Self:
        if self.is_reversed and self.is_bidirectional:
            raise ValueError("is_reversed=true makes no sense with is_bidirectional=true, which reads both ways")
        return self


class RecurrentDecoder(Recurrent):
    """Recurrent decoder; `attention="none"` is the fixed-vector model."""

    type: Literal["recurrent"] = "recurrent"
    attention: Score | Literal["none"] = "general"
    """How a decoder state is compared with each encoder output (`concat` is accepted for `additive`)."""
    wiring: Literal["luong", "luong_input_feeding", "bahdanau"] = "luong"
    """Where the context enters: `luong` after the cell, so that all steps are one call under teacher forcing; with
    `luong_input_feeding` the attended vector is also fed to the next step; `bahdanau` before the cell."""
    start: Literal["encoder", "learned"] = "encoder"
    """Start state: the encoder's final one (projected where sizes or directions differ), or one learned vector."""
    vector_every_step: bool = False
    """With `attention="none"`: the fixed vector is also part of every step's input (Cho et al. 2014)."""
    tie_embeddings: bool = False
    """Use the target embedding as output layer; needs `embedding_dim = hidden_size`."""

    @model_validator(mode="before")
    @classmethod
    def _concat_is_additive(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("attention") == "concat":
            return {**values, "attention": "additive"}
        return values

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.attention == "none" and self.wiring != "luong":
            raise ValueError(f"wiring={self.wiring} says where a context enters, but attention=none has no context")
        if self.attention != "none" and self.vector_every_step:
            raise ValueError(f"vector_every_step=true is an option of attention=none, got attention={self.attention}")
        if self.attention == "none" and self.start == "learned" and not self.vector_every_step:
            raise ValueError("attention=none with start=learned never sees the source; set vector_every_step=true")
        _check_tied(self, is_tied=self.tie_embeddings)
        return self


class RecurrentLanguageDecoder(Recurrent):
    """Recurrent layers over a text, from a zero state."""

    type: Literal["recurrent"] = "recurrent"
    tie_embeddings: bool = False
    """Use the embedding as output layer; needs `embedding_dim = hidden_size`."""
    variational_dropout: bool = False
    """Draw one mask a sequence and use it at all its steps (Gal & Ghahramani 2016)."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        _check_tied(self, is_tied=self.tie_embeddings)
        return self


def _check_tied(settings: Recurrent, *, is_tied: bool) -> None:
    """An embedding that is the output layer too is as wide as what that layer reads."""
    if is_tied and settings.embedding_dim != settings.hidden_size:
        raise ValueError(
            f"tie_embeddings needs embedding_dim = hidden_size, got {settings.embedding_dim} and {settings.hidden_size}"
        )


class Transformer(Settings):
    """What Transformer encoders and decoders have in common."""

    d_model: Positive = 256
    d_ff: Positive = 1024
    num_layers: Positive = 4
    num_heads: Positive = 4
    positions: Positions = "sinusoidal"
    """`rotary` turns queries and keys, those of a decoder's attention to the source included."""
    max_positions: Positive = 1024
    """Rows of the table of `positions="learned"`; longer sequences are refused."""
    window: Positive | None = None
    """Look only at positions nearer than this: a decoder at itself and the window − 1 before it, an encoder on both
    sides. Time and memory grow as length · window; none for the whole sequence."""
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sublayer (with a last one at the top), or after each residual sum (2017)."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Of the feed-forward layer; `swiglu` has a third matrix (Shazeer 2020)."""
    dropout: Rate = 0.1

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model must be divisible by num_heads, got {self.d_model} and {self.num_heads}")
        if self.positions == "rotary" and (self.d_model // self.num_heads) % 2:
            raise ValueError(f"rotary positions need an even head_dim, got {self.d_model // self.num_heads}")
        return self


class TransformerEncoder(Transformer):
    """Transformer encoder."""

    type: Literal["transformer"] = "transformer"


class TransformerDecoder(Transformer):
    """Transformer decoder, with a key-value cache."""

    type: Literal["transformer"] = "transformer"
    tie_embeddings: bool = False
    """Use the target embedding as output layer."""


class Convolution(Settings):
    """What convolutional encoders and decoders have in common."""

    channels: Positive = 256
    """Width of the embeddings and of every layer."""
    kernel_size: Annotated[int, Field(ge=2)] = 3
    """Positions that a layer reads at once."""
    num_layers: Positive = 4
    is_dilated: bool = True
    """Let layer l = 0, 1, … read positions kernel_sizeˡ apart, so that all together reach over as many as kernel_size
    to the power of num_layers; off: neighbours in every layer."""
    dropout: Rate = 0.2
    """On the embeddings, between layers, and on the output."""

    @model_validator(mode="after")
    def _reach_is_finite(self) -> Self:
        reach = receptive_field(self)
        if reach > MAX_REACH:
            raise ValueError(
                f"kernel_size={self.kernel_size} over num_layers={self.num_layers} reaches over {reach} positions, at"
                f" most {MAX_REACH} make sense; lower one of them or set is_dilated=false"
            )
        return self


MAX_REACH = 2**16
"""Positions that one output of a convolutional stack may see; a decoder keeps that many inputs in its state."""


class ConvolutionEncoder(Convolution):
    """Gated convolutions centred on each position; needs an odd `kernel_size`."""

    type: Literal["convolution"] = "convolution"

    @model_validator(mode="after")
    def _kernel_has_a_centre(self) -> Self:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"a centred convolution needs an odd kernel_size, got {self.kernel_size}")
        return self


class ConvolutionDecoder(Convolution):
    """Gated convolutions over the position itself and those before it, with attention to the encoder in each layer."""

    type: Literal["convolution"] = "convolution"
    tie_embeddings: bool = False
    """Use the target embedding as output layer."""


def dilations(settings: Convolution) -> tuple[int, ...]:
    """Distance between the positions that each layer reads: 1, k, k², …, or 1 everywhere."""
    return tuple(settings.kernel_size**layer if settings.is_dilated else 1 for layer in range(settings.num_layers))


def receptive_field(settings: Convolution) -> int:
    """Positions that one output of the whole stack can see: ``1 + Σ_l (k − 1) d_l``."""
    return 1 + (settings.kernel_size - 1) * sum(dilations(settings))


Encoder = Annotated[RecurrentEncoder | TransformerEncoder | ConvolutionEncoder, Field(discriminator="type")]
Decoder = Annotated[RecurrentDecoder | TransformerDecoder | ConvolutionDecoder, Field(discriminator="type")]
LanguageDecoder = Annotated[
    RecurrentLanguageDecoder | TransformerDecoder | ConvolutionDecoder, Field(discriminator="type")
]


class Seq2Seq(Settings):
    """Encoder–decoder: any of the encoders with any of the decoders."""

    type: Literal["seq2seq"] = "seq2seq"
    encoder: Encoder = RecurrentEncoder()
    decoder: Decoder = RecurrentDecoder()
    share_embeddings: bool = False
    """One embedding for source and target; needs `data.shared_vocabulary`. With `decoder.tie_embeddings` it is the
    output layer too (three-way tying, Press & Wolf 2017)."""

    @model_validator(mode="after")
    def _embeddings_fit(self) -> Self:
        ours, theirs = embedding_size(self.encoder), embedding_size(self.decoder)
        if self.share_embeddings and ours != theirs:
            raise ValueError(f"share_embeddings needs embeddings of equal size, got {ours} and {theirs}")
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if isinstance(self.decoder, RecurrentDecoder) and self.decoder.attention in ("dot", "scaled_dot"):
            width, hidden = memory_size(self.encoder), self.decoder.hidden_size
            if width != hidden:
                raise ValueError(
                    f"attention={self.decoder.attention} needs equal sizes, got encoder output {width} and decoder"
                    f" hidden_size {hidden}; use attention=general or make them equal"
                )
        return self


class LanguageModel(Settings):
    """A decoder alone: P(y) = Π_t P(y_t | y_<t)."""

    type: Literal["language_model"] = "language_model"
    decoder: LanguageDecoder = RecurrentLanguageDecoder()


class FrameDecoder(Cells):
    """Recurrent layers over vectors, from a zero state."""

    type: Literal["recurrent"] = "recurrent"


class Frames(Settings):
    """A model of what stands beside each vector of a sequence, given all vectors up to it."""

    type: Literal["frames"] = "frames"
    decoder: FrameDecoder = FrameDecoder()
    head: Literal["categorical", "bernoulli", "regression"] = "bernoulli"
    """What the outputs mean: scores of classes, of things that are there or not each for itself, or numbers."""


def embedding_size(side: Encoder | Decoder) -> int:
    """Width of the vectors of symbols."""
    if isinstance(side, Recurrent):
        return side.embedding_dim
    return side.d_model if isinstance(side, Transformer) else side.channels


def memory_size(encoder: Encoder) -> int:
    """Width of an encoder's output: all directions together."""
    if isinstance(encoder, ConvolutionEncoder):
        return encoder.channels
    if isinstance(encoder, TransformerEncoder):
        return encoder.d_model
    return encoder.hidden_size * (2 if encoder.is_bidirectional else 1)


def longest_sequence(side: Cells | Transformer | Convolution) -> int | None:
    """Most symbols that an encoder or a decoder can read, the end symbol included; none for any number."""
    return side.max_positions if isinstance(side, Transformer) and side.positions == "learned" else None


def carries_state(decoder: LanguageDecoder) -> bool:
    """Whether a language model reads any length of text by a state of one size; others read windows of it."""
    return not isinstance(decoder, TransformerDecoder)


def longest_source(model: Seq2Seq | LanguageModel | Frames) -> int | None:
    """Most symbols of a source that a model can read; none for any number."""
    return longest_sequence(model.encoder) if isinstance(model, Seq2Seq) else None


Model = Annotated[Seq2Seq | LanguageModel | Frames, Field(discriminator="type")]
