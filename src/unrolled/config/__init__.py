"""A run's settings: frozen models, every default in this one room.

`Config` is what a run folder stores and what every room reads. Settings are nested (`model.encoder.hidden_size`),
unknown fields are refused, and unions are told apart by their `type`. Reading files, dotted overrides and the
order of precedence live in `unrolled.settings`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unrolled.config.base import Count, Positive, Rate, Settings
from unrolled.config.feeding import Feeding, FreeRunning, ScheduledSampling, TeacherForcing
from unrolled.config.frames import FrameData
from unrolled.config.model import (
    Cells,
    Convolution,
    ConvolutionDecoder,
    ConvolutionEncoder,
    Decoder,
    Encoder,
    FrameDecoder,
    Frames,
    LanguageDecoder,
    LanguageModel,
    Model,
    Recurrent,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentLanguageDecoder,
    Seq2Seq,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    carries_state,
    dilations,
    longest_sequence,
    longest_source,
    memory_size,
)
from unrolled.config.tasks import (
    AddingTask,
    AdditionTask,
    CopyMemoryTask,
    CopyTask,
    DatesTask,
    PairTask,
    ReverseTask,
    SortTask,
    VectorTask,
)
from unrolled.config.text import Text

__all__ = [
    "AddingTask",
    "AdditionTask",
    "Cells",
    "Config",
    "Convolution",
    "ConvolutionDecoder",
    "ConvolutionEncoder",
    "CopyMemoryTask",
    "CopyTask",
    "Data",
    "DatesTask",
    "Decoder",
    "Decoding",
    "Encoder",
    "Feeding",
    "FrameData",
    "FrameDecoder",
    "Frames",
    "FreeRunning",
    "LanguageDecoder",
    "LanguageModel",
    "Model",
    "Optimizer",
    "PairTask",
    "Recurrent",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentLanguageDecoder",
    "ReverseTask",
    "Schedule",
    "ScheduledSampling",
    "Seq2Seq",
    "Side",
    "SortTask",
    "TeacherForcing",
    "Text",
    "Training",
    "Transformer",
    "TransformerDecoder",
    "TransformerEncoder",
    "VectorTask",
    "carries_state",
    "dilations",
    "longest_sequence",
    "longest_source",
    "memory_size",
]

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
    format: Literal["tsv", "csv", "parallel"] = "tsv"
    """`tsv`: split at tabs, quotes are ordinary symbols. `csv`: RFC 4180 quoting, asked for explicitly. `parallel`: two
    files whose lines with the same number are a pair; a line is one text, tabs included."""
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
    task: PairTask | None = Field(default=None, discriminator="type")
    """Draw pairs instead of reading them; `task:NAME` in place of a file sets its type."""

    @model_validator(mode="before")
    @classmethod
    def _vectors_are_no_pairs(cls, values: object) -> object:
        task = values.get("task") if isinstance(values, dict) else None
        name = task.get("type") if isinstance(task, dict) else None
        if name in ("adding", "copy_memory"):
            preset = name.replace("_", "-")
            raise ValueError(f"task={name} is made of vectors, not of pairs; start from --preset {preset}")
        return values

    @model_validator(mode="after")
    def _task_is_of_characters(self) -> Self:
        if self.task is not None and (self.source.units, self.target.units) != ("character", "character"):
            raise ValueError(f"task={self.task.type} is made of characters; leave both sides' units at character")
        if self.task is not None and self.shared_vocabulary:
            raise ValueError(f"task={self.task.type} has vocabularies of its own; leave shared_vocabulary at false")
        return self

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
    """Time budget of the training steps; the number of steps that fit is measured early, and again on the way."""
    batch_tokens: Positive = 2048
    """Most padded positions of a micro-batch, source and target together."""
    max_batch_size: Positive = 512
    """Most pairs of a micro-batch."""
    accumulate: Positive = 1
    """Micro-batches of one optimiser step."""
    feeding: Feeding = TeacherForcing()
    """What the decoder is fed: the true symbols, its own, or by and by its own."""
    label_smoothing: Rate = 0.1
    """ε of (1 − ε) · one-hot + ε / V."""
    softmax_sample: Annotated[int, Field(ge=100)] | None = None
    """For running text with many symbols: how many, on average, a step estimates the softmax of its loss from, besides
    its labels; none for all. Evaluation takes all of them."""
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
    watch: bool = True
    """End a training that cannot come to anything: loss stuck at ln V, or a source that changes no prediction."""
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

    data: Annotated[Data | Text | FrameData, Field(discriminator="type")] = Data()
    model: Model = Seq2Seq()
    training: Training = Training(max_epochs=50)
    decoding: Decoding = Decoding()

    @model_validator(mode="after")
    def _feeding_is_of_pairs(self) -> Self:
        if self.training.feeding.type != "teacher_forcing" and not isinstance(self.model, Seq2Seq):
            raise ValueError(
                f"training.feeding: {self.training.feeding.type} is for model.type=seq2seq, got {self.model.type}"
            )
        return self

    @model_validator(mode="after")
    def _softmax_sample_is_of_plain_text(self) -> Self:
        if self.training.softmax_sample is None:
            return self
        if not isinstance(self.data, Text):
            raise ValueError(f"training.softmax_sample is for data.type=text, got {self.data.type}")
        if self.training.label_smoothing:
            raise ValueError("training.softmax_sample needs training.label_smoothing=0")
        return self

    @model_validator(mode="after")
    def _shared_embeddings_have_one_vocabulary(self) -> Self:
        if isinstance(self.data, Data) and isinstance(self.model, Seq2Seq) and self.model.share_embeddings:
            if not self.data.shared_vocabulary:
                raise ValueError("model.share_embeddings needs data.shared_vocabulary=true")
            if "features" in self.data.columns:
                raise ValueError("model.share_embeddings: features belong to the source alone; leave one of them out")
        return self

    @model_validator(mode="after")
    def _data_fit(self) -> Self:
        """Each kind of data has a kind of model."""
        model_of = {"pairs": "seq2seq", "text": "language_model", "frames": "frames"}
        if model_of[self.data.type] != self.model.type:
            raise ValueError(
                f"data.type={self.data.type} does not go with model.type={self.model.type}: pairs go with seq2seq, text"
                " with language_model, and frames with frames; start from a preset of that kind"
            )
        return self

    @model_validator(mode="after")
    def _frames_fit(self) -> Self:
        """A head is for labels of its kind, and vectors have neither symbols to smooth over nor answers to search."""
        if not isinstance(self.data, FrameData) or not isinstance(self.model, Frames):
            return self
        head_of = {None: "bernoulli", "adding": "regression", "copy_memory": "categorical"}
        task = None if self.data.task is None else self.data.task.type
        if self.model.head != head_of[task]:
            raise ValueError(f"model.head: {task or 'music'} needs {head_of[task]}, got {self.model.head}")
        if self.training.label_smoothing or self.training.dev_metric != "loss":
            raise ValueError("training: models of vectors have label_smoothing=0 and dev_metric=loss")
        return self

    @model_validator(mode="after")
    def _context_fits(self) -> Self:
        """All of a window has positions, and there is nothing to decode."""
        if not isinstance(self.data, Text) or not isinstance(self.model, LanguageModel):
            return self
        limit = longest_sequence(self.model.decoder)
        if limit is not None and limit < self.data.context:
            raise ValueError(
                f"model.decoder: positions=learned end at max_positions={limit}, below"
                f" data.context={self.data.context}; raise the one or lower the other"
            )
        if self.training.dev_metric != "loss":
            raise ValueError(f"training.dev_metric={self.training.dev_metric} needs pairs; text has dev_metric=loss")
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        """All that is trained on has positions: what is longer was dropped or cut, and reported."""
        if not isinstance(self.model, Seq2Seq) or not isinstance(self.data, Data):
            return self
        for model, data in (("encoder", "source"), ("decoder", "target")):
            limit, longest = longest_sequence(getattr(self.model, model)), getattr(self.data, data).max_length
            if limit is not None and limit < longest:
                raise ValueError(
                    f"model.{model}: positions=learned end at max_positions={limit}, below"
                    f" data.{data}.max_length={longest}; raise the one or lower the other"
                )
        return self
