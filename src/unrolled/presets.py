"""Named settings: plain functions that return a `Config`; the first line of each docstring is its description."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from unrolled.config import (
    AddingTask,
    Config,
    CopyMemoryTask,
    Data,
    Decoding,
    FrameData,
    FrameDecoder,
    Frames,
    LanguageModel,
    Optimizer,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentLanguageDecoder,
    Schedule,
    Seq2Seq,
    Side,
    Text,
    Training,
    TransformerDecoder,
    TransformerEncoder,
)
from unrolled.errors import ConfigError

__all__ = [
    "PRESETS",
    "adding",
    "char_lm",
    "copy_memory",
    "describe",
    "g2p",
    "get",
    "gpt_tiny",
    "inflect",
    "music",
    "of_task",
    "tiny",
    "translate_small",
    "transliterate",
    "word_lm",
]

WORDS = Training(
    max_epochs=60, minutes=5, batch_tokens=8192, max_batch_size=64, dev_metric="error_rate", average="best"
)
"""For pairs of words: a few thousand of them end after 60 epochs, a large dictionary after 5 minutes."""

TEXT = Training(minutes=10, label_smoothing=0.0, schedule=Schedule(warmup_steps=100))
"""For running text."""


MEMORY = Training(
    max_steps=2000,
    max_batch_size=64,
    batch_tokens=8192,
    label_smoothing=0.0,
    optimizer=Optimizer(learning_rate=5e-3),
    schedule=Schedule(warmup_steps=100),
)
"""For tasks of vectors."""


def g2p() -> Config:
    """Spelling to pronunciation: letters in, phones separated by spaces out."""
    return Config(
        data=Data(target=Side(units="space")),
        model=Seq2Seq(encoder=RecurrentEncoder(num_layers=2, dropout=0.3), decoder=RecurrentDecoder(dropout=0.3)),
        training=WORDS,
    )


def inflect() -> Config:
    """Lemma and tags to inflected form: columns source, target, features."""
    size = {"d_model": 128, "d_ff": 512, "num_layers": 3, "dropout": 0.2}
    return Config(
        data=Data(columns=("source", "target", "features")),
        model=Seq2Seq(encoder=TransformerEncoder(**size), decoder=TransformerDecoder(**size)),
        training=WORDS.model_copy(
            update={
                "max_epochs": 100,
                "minutes": 20,
                "optimizer": Optimizer(learning_rate=1e-3),
                "schedule": Schedule(warmup_steps=400),
            }
        ),
    )


def transliterate() -> Config:
    """Names from one script to another: characters in, characters out."""
    return Config(training=WORDS)


def translate_small() -> Config:
    """Sentences of some ten thousand pairs: a Transformer of 2.4 million weights over shared subwords, 50 minutes."""
    side = Side(units="bpe", num_subwords=8000)
    size = {"d_model": 128, "d_ff": 256, "num_layers": 4, "num_heads": 4, "positions": "rotary", "dropout": 0.3}
    return Config(
        data=Data(source=side, target=side, shared_vocabulary=True),
        model=Seq2Seq(
            encoder=TransformerEncoder(**size),
            decoder=TransformerDecoder(**size, tie_embeddings=True),
            share_embeddings=True,
        ),
        training=Training(
            minutes=50,
            batch_tokens=8192,
            optimizer=Optimizer(learning_rate=4e-3),
            schedule=Schedule(warmup_steps=800),
            average="last",
        ),
        decoding=Decoding(length_penalty="mean"),
    )


def tiny() -> Config:
    """A model of seconds, to try things out: one small GRU on each side, 20 epochs."""
    return Config(
        model=Seq2Seq(
            encoder=RecurrentEncoder(cell="gru", embedding_dim=32, hidden_size=32, dropout=0.0),
            decoder=RecurrentDecoder(cell="gru", embedding_dim=32, hidden_size=64, dropout=0.0),
        ),
        training=Training(
            max_epochs=20,
            max_batch_size=32,
            label_smoothing=0.0,
            optimizer=Optimizer(learning_rate=5e-3),
            schedule=Schedule(warmup_steps=10),
        ),
        decoding=Decoding(beam=1),
    )


def char_lm() -> Config:
    """Language model of characters: an LSTM that carries its state through the text."""
    return Config(
        data=Text(context=64),
        model=LanguageModel(decoder=RecurrentLanguageDecoder(embedding_dim=128, hidden_size=384, dropout=0.1)),
        training=TEXT.model_copy(update={"optimizer": Optimizer(learning_rate=4e-3)}),
    )


def word_lm() -> Config:
    """Language model of words: an LSTM with tied embeddings and variational dropout."""
    return Config(
        data=Text(units="word", context=64),
        model=LanguageModel(
            decoder=RecurrentLanguageDecoder(
                embedding_dim=256,
                hidden_size=256,
                num_layers=2,
                dropout=0.2,
                tie_embeddings=True,
                variational_dropout=True,
            )
        ),
        training=TEXT.model_copy(
            update={"minutes": 60, "softmax_sample": 4096, "optimizer": Optimizer(learning_rate=8e-3)}
        ),
    )


def gpt_tiny() -> Config:
    """Language model of characters: a small Transformer that reads windows of the text."""
    return Config(
        data=Text(context=128),
        model=LanguageModel(
            decoder=TransformerDecoder(d_model=128, d_ff=512, num_layers=4, positions="rotary", dropout=0.0)
        ),
        training=TEXT.model_copy(update={"batch_tokens": 4096, "optimizer": Optimizer(learning_rate=3e-3)}),
    )


def music() -> Config:
    """Which keys of a piano sound next: an LSTM with a Bernoulli head, for chorales and the like."""
    return Config(
        data=FrameData(),
        model=Frames(decoder=FrameDecoder(hidden_size=200, dropout=0.5), head="bernoulli"),
        training=Training(
            max_epochs=60,
            max_batch_size=16,
            batch_tokens=8192,
            label_smoothing=0.0,
            optimizer=Optimizer(learning_rate=5e-3),
            schedule=Schedule(warmup_steps=20),
        ),
    )


def adding() -> Config:
    """The adding problem, `task:adding`: an LSTM that keeps two numbers over fifty steps."""
    return Config(
        data=FrameData(task=AddingTask()),
        model=Frames(decoder=FrameDecoder(hidden_size=64, dropout=0.0), head="regression"),
        training=MEMORY.model_copy(update={"max_steps": 1500}),
    )


def copy_memory() -> Config:
    """Copying after a wait, `task:copy-memory`: an LSTM that keeps ten symbols over twenty steps."""
    return Config(
        data=FrameData(task=CopyMemoryTask(lag=20)),
        model=Frames(decoder=FrameDecoder(hidden_size=128, dropout=0.0), head="categorical"),
        training=MEMORY.model_copy(update={"max_steps": 3000}),
    )


PRESETS: dict[str, Callable[[], Config]] = {
    preset.__name__.replace("_", "-"): preset
    for preset in (
        g2p,
        inflect,
        transliterate,
        translate_small,
        tiny,
        char_lm,
        word_lm,
        gpt_tiny,
        music,
        adding,
        copy_memory,
    )
}


def get(name: str) -> Config:
    """Return the settings of a preset.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}{hint}")
    return PRESETS[name]()


def of_task(path: object) -> str | None:
    """The preset that `task:NAME` starts from where none is asked for; none for tasks of pairs."""
    kind, _, name = str(path).partition(":")
    preset = name.replace("_", "-")
    return preset if kind == "task" and preset in PRESETS else None


def describe() -> dict[str, str]:
    """Name of each preset and its description in one line."""
    return {name: (preset.__doc__ or "").partition("\n")[0] for name, preset in PRESETS.items()}
