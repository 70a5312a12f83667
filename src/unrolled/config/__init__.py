"""A run's settings: frozen models, every default in this one room.

`Config` is what a run folder stores and what every room reads. Settings are nested (`model.encoder.hidden_size`),
unknown fields are refused, and unions are told apart by their `type`. Reading files, dotted overrides and the
order of precedence live in `unrolled.settings`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unrolled.config.base import Count, Positive, Rate, Settings
from unrolled.config.text import Text

__all__ = [
    "Config",
    "Data",
    "Decoder",
    "Decoding",
    "Encoder",
    "LanguageDecoder",
    "LanguageModel",
    "Model",
    "Optimizer",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentLanguageDecoder",
    "Schedule",
    "Seq2Seq",
    "Side",
    "Text",
    "Training",
    "TransformerDecoder",
    "TransformerEncoder",
]

Cell = Literal["rnn", "lstm", "gru"]
Score = Literal["dot", "scaled_dot", "general", "additive"]
Positions = Literal["sinusoidal", "learned", "rotary"]
Column = Literal["source", "target", "features", "-"]


# --- data ------------------------------------------------------------------------------------------------------------


class Side(Settings):
    """How one side of a pair is cut into symbols."""

    units: Literal["character", "space", "byte", "bpe", "unigram"] = "character"
    """One symbol a code point, a space-separated token, a byte of the UTF-8 form, or a subword learnt from the training
    data (byte-pair merges, or a unigram model of pieces)."""
    num_subwords: Annotated[int, Field(ge=256)] = 8000
    """Of `units="bpe"` and `units="unigram"`: how many are learnt, all 256 bytes included."""
    min_count: Positive = 1
    """Symbols seen less often in the training data become the unknown symbol."""
    max_symbols: Positive | None = None
    """Largest number of symbols kept (most frequent first, ties by code point); none for all."""
    max_length: Positive = 256
    """Longest sequence that is trained on, in symbols, its end symbol included."""

    @model_validator(mode="after")
    def _limits_fit_the_units(self) -> Self:
        if self.units not in ("bpe", "unigram"):
            if self.num_subwords != type(self).model_fields["num_subwords"].default:
                raise ValueError(f"num_subwords is an option of units=bpe and units=unigram, got units={self.units}")
        elif self.min_count > 1 or self.max_symbols is not None:
            raise ValueError(f"units={self.units} keeps what it learns: set num_subwords, not min_count or max_symbols")
        return self


class Data(Settings):
    """What a line of a data file is, and how its text is normalised."""

    type: Literal["pairs"] = "pairs"
    columns: tuple[Column, ...] = ("source", "target")
    """What each column holds, in order; `-` skips one."""
    format: Literal["tsv", "csv"] = "tsv"
    """`tsv`: split at tabs, quotes are ordinary symbols. `csv`: RFC 4180 quoting, asked for explicitly."""
    encoding: str = "utf-8"
    """Character encoding of the data files."""
    header: bool = False
    """Whether the first line holds column names and is skipped."""
    normal_form: Literal["NFC", "NFD", "NFKC", "NFKD", "none"] = "NFC"
    """Unicode normal form of what the model reads and writes; output is recomposed to NFC from NFD."""
    source: Side = Side()
    target: Side = Side()
    shared_vocabulary: bool = False
    """One vocabulary for both sides, taken from the texts of both; subwords are learnt from both."""
    over_long: Literal["drop", "cut"] = "drop"
    """What happens to training pairs over a side's `max_length`."""
    dev_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of the distinct sources held out when no dev file is given."""
    dev_limit: Positive = 2000
    """Most distinct sources that are held out."""

    @model_validator(mode="after")
    def _columns_make_sense(self) -> Self:
        named = [column for column in self.columns if column != "-"]
        if "source" not in named or len(set(named)) != len(named):
            raise ValueError(f"columns need exactly one 'source' and nothing twice, got {','.join(self.columns)}")
        return self

    @model_validator(mode="after")
    def _one_way_to_share(self) -> Self:
        for name in ("units", "num_subwords", "min_count", "max_symbols") if self.shared_vocabulary else ():
            ours, theirs = getattr(self.source, name), getattr(self.target, name)
            if ours != theirs:
                raise ValueError(
                    f"shared_vocabulary needs equal source.{name} and target.{name}, got {ours} and {theirs}"
                )
        return self


# --- models ----------------------------------------------------------------------------------------------------------


class Recurrent(Settings):
    """What recurrent encoders and decoders have in common."""

    cell: Cell = "lstm"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Of `cell="rnn"` alone."""
    forget_gate: bool = True
    """Of `cell="lstm"` alone: off gives the cell of 1997, an ungated carousel."""
    reset: Literal["after", "before"] = "after"
    """Of `cell="gru"` alone: whether the reset gate acts after the recurrent product (cuDNN) or before it (2014)."""
    embedding_dim: Positive = 128
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
    max_positions: Positive = 1024
    """Rows of the table of `positions="learned"`; longer sequences are refused."""
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


Encoder = Annotated[RecurrentEncoder | TransformerEncoder, Field(discriminator="type")]
Decoder = Annotated[RecurrentDecoder | TransformerDecoder, Field(discriminator="type")]
LanguageDecoder = Annotated[RecurrentLanguageDecoder | TransformerDecoder, Field(discriminator="type")]


class Seq2Seq(Settings):
    """Encoder–decoder: any of the encoders with any of the decoders."""

    type: Literal["seq2seq"] = "seq2seq"
    encoder: Encoder = RecurrentEncoder()
    decoder: Decoder = RecurrentDecoder()

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


def memory_size(encoder: RecurrentEncoder | TransformerEncoder) -> int:
    """Width of an encoder's output: all directions together."""
    if isinstance(encoder, TransformerEncoder):
        return encoder.d_model
    return encoder.hidden_size * (2 if encoder.is_bidirectional else 1)


def longest_sequence(side: Recurrent | Transformer) -> int | None:
    """Most symbols that an encoder or a decoder can read, the end symbol included; none for any number."""
    return side.max_positions if isinstance(side, Transformer) and side.positions == "learned" else None


def longest_source(model: Seq2Seq | LanguageModel) -> int | None:
    """Most symbols of a source that a model can read; none for any number."""
    return longest_sequence(model.encoder) if isinstance(model, Seq2Seq) else None


Model = Annotated[Seq2Seq | LanguageModel, Field(discriminator="type")]


# --- training and decoding -------------------------------------------------------------------------------------------


class Optimizer(Settings):
    """AdamW (Loshchilov & Hutter 2019)."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 2e-3
    beta1: Rate = 0.9
    beta2: Rate = 0.98
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Applied to matrices only; biases and norms are left alone."""
    clip_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Largest norm of the whole gradient."""


class Schedule(Settings):
    """Learning rate over the steps t = 1, 2, …, T, as a factor of the base rate."""

    type: Literal["cosine", "inverse_sqrt", "constant"] = "cosine"
    warmup_steps: Count = 200
    """Linear warm-up t / w for t ≤ w."""


class Training(Settings):
    """How long and on what each step trains; the first limit that is reached ends the run."""

    max_epochs: Positive | None = None
    max_steps: Positive | None = None
    minutes: Annotated[float, Field(gt=0.0)] | None = None
    """Time budget of the training steps; the number of steps that fit is measured once, early, and recorded."""
    batch_tokens: Positive = 2048
    """Most padded positions of a micro-batch, source and target together."""
    max_batch_size: Positive = 512
    """Most pairs of a micro-batch."""
    accumulate: Positive = 1
    """Micro-batches of one optimiser step."""
    label_smoothing: Rate = 0.1
    """ε of (1 − ε) · one-hot + ε / V."""
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    evaluate_every: Positive | None = None
    """Steps between dev evaluations; none for once an epoch, or less often under a time budget."""
    save_every: Positive | None = None
    """Steps between saves of the resume state; none for the first dev evaluation after every 15 seconds."""
    dev_metric: Literal["loss", "error_rate", "symbol_error_rate"] = "loss"
    """What chooses the best checkpoint and stops early; the two error rates decode the dev set greedily."""
    patience: Positive | None = None
    """Dev evaluations without a better value before training stops; none for never."""
    average: Literal["none", "last", "best"] = "none"
    """Average the weights of the last or of the best checkpoints."""
    average_count: Positive = 5
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` runs the matrix products under autocast; weights and optimiser stay float32."""
    seed: Count = 0

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.max_epochs is None and self.max_steps is None and self.minutes is None:
            raise ValueError("training has no end: set max_epochs, max_steps or minutes")
        return self


class Decoding(Settings):
    """How predictions are searched."""

    beam: Positive = 5
    length_penalty: Literal["none", "mean", "gnmt"] = "none"
    """score = log_prob / lp(n): `none` 1, `mean` n, `gnmt` ((5 + n) / 6)^alpha; n counts the end symbol."""
    alpha: Annotated[float, Field(ge=0.0)] = 0.6
    max_length: Positive | None = None
    """Longest output in symbols, end symbol included; none for 2 · source length + 50."""


class Config(Settings):
    """All settings of one run."""

    data: Data = Data()
    model: Model = Seq2Seq()
    training: Training = Training(max_epochs=50)
    decoding: Decoding = Decoding()

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        """All that is trained on has positions: what is longer was dropped or cut, and reported."""
        if not isinstance(self.model, Seq2Seq):
            return self
        for model, data in (("encoder", "source"), ("decoder", "target")):
            limit, longest = longest_sequence(getattr(self.model, model)), getattr(self.data, data).max_length
            if limit is not None and limit < longest:
                raise ValueError(
                    f"model.{model}: positions=learned end at max_positions={limit}, below"
                    f" data.{data}.max_length={longest}; raise the one or lower the other"
                )
        return self
