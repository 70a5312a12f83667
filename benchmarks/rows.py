"""What is compared: the rows of the table."""

from __future__ import annotations

from turns import Program, Row, Unit

WORDS, TOKENS, PASSES = Unit("words/s"), Unit("tokens/s"), Unit("passes/s")
SECONDS, MEMORY, PER_SYMBOL = Unit("s", True), Unit("GB", True), Unit("KiB/symbol", True)


def trained_beside_plain(name: str, steps: int) -> tuple[Program, ...]:
    """Training of ours and in plain PyTorch."""
    return (
        Program("unrolled", "train.py", ("ours", name, steps)),
        Program("plain PyTorch, same matrix mode", "train.py", ("plain", name, steps), is_plain=True),
    )


def trained_beside_all(name: str, steps: int) -> tuple[Program, ...]:
    """Also with PyTorch's own matrix mode, and by Yoyodyne, which takes fewer steps in the same time."""
    return (
        *trained_beside_plain(name, steps),
        Program("plain PyTorch", "train.py", ("plain-default", name, steps), is_plain=True),
        Program("Yoyodyne", "yoyodyne_train.py", (name, steps // 4), "yoyodyne"),
    )


def layer(cell: str) -> tuple[Program, ...]:
    """A layer of ours and PyTorch's."""
    return (
        Program("unrolled", "layers.py", ("ours", cell)),
        Program(f"nn.{cell.upper()}, same matrix mode", "layers.py", ("plain", cell), is_plain=True),
        Program(f"nn.{cell.upper()}", "layers.py", ("plain-default", cell), is_plain=True),
    )


def search(beam: int) -> str:
    """What a search is called."""
    return "greedy" if beam == 1 else f"beam {beam}"


def random_weights(beam: int, count: int) -> tuple[Program, ...]:
    """Transformers that decode 8 symbols from 8, so that all do the same steps."""
    work, batches = (count, beam, "{batch}"), (256, 1024)
    return (
        Program("unrolled", "decode_ours.py", ("torch", "transformer", *work), batches=batches),
        Program("transformers", "decode_transformers.py", work, "transformers", batches),
        Program("CTranslate2", "decode_ctranslate2.py", (*work, "float32"), "ctranslate2", batches),
        Program("CTranslate2 int8", "decode_ctranslate2.py", (*work, "int8"), "ctranslate2", batches),
    )


def both_engines(beam: int, count: int) -> tuple[Program, ...]:
    """Our two engines with an LSTM."""
    work = ("lstm", count, beam, "{batch}")
    return tuple(
        Program(name, "decode_ours.py", (kind, *work), batches=(256, 1024))
        for name, kind in (("unrolled", "torch"), ("unrolled, NumPy engine", "numpy"))
    )


def real_words(name: str, beam: int, count: int, *, theirs: int, batches: tuple[int, ...]) -> tuple[Program, ...]:
    """Models that were trained for the same number of steps; Yoyodyne decodes the first of the words.

    Ours makes its own batches of what it is given at once.
    """
    return (
        Program("unrolled", "decode_words.py", (name, count, beam, "torch")),
        Program("Yoyodyne", "yoyodyne_decode.py", (name, theirs, beam, "{batch}"), "yoyodyne", batches),
    )


def halved(name: str, count: int) -> Row:
    """A trained model in half precision."""
    programs = (
        Program(kind, "decode_words.py", (name, count, 5, engine))
        for kind, engine in (("bfloat16 engine", "bfloat16"), ("PyTorch engine", "torch"))
    )
    return Row(f"decoding, {name}, beam 5, trained, in half precision", WORDS, tuple(programs))


ROWS = [
    Row("training, LSTM with attention (luong), dropout on", WORDS, trained_beside_all("lstm", 40)),
    Row("training, LSTM, input feeding, dropout on", WORDS, trained_beside_plain("input-feeding", 20)),
    Row("training, LSTM, bahdanau, dropout on", WORDS, trained_beside_plain("bahdanau", 20)),
    Row("training, Transformer 4+4, dropout 0.1", WORDS, trained_beside_all("transformer", 20)),
    Row("training, Transformer 4+4, dropout 0", WORDS, trained_beside_all("transformer-0", 20)),
    *(Row(f"{cell.upper()} layer, forward and backward", PASSES, layer(cell)) for cell in ("gru", "rnn", "lstm")),
    *(
        Row(f"decoding, Transformer 4+4, {search(beam)}, 8 symbols in and out", WORDS, random_weights(beam, count))
        for beam, count in ((1, 2048), (5, 1024))
    ),
    *(
        Row(f"decoding, LSTM, {search(beam)}, 8 symbols in and out", WORDS, both_engines(beam, count))
        for beam, count in ((1, 4096), (5, 1024))
    ),
    Row("decoding, LSTM, greedy, trained", WORDS, real_words("lstm", 1, 12_000, theirs=1024, batches=(64, 512))),
    Row("decoding, LSTM, beam 5, trained", WORDS, real_words("lstm", 5, 4000, theirs=256, batches=(32, 128))),
    Row(
        "decoding, Transformer 4+4, greedy, trained",
        WORDS,
        real_words("transformer", 1, 4000, theirs=128, batches=(32, 128)),
    ),
    Row(
        "decoding, Transformer 4+4, beam 5, trained",
        WORDS,
        real_words("transformer", 5, 1024, theirs=128, batches=(32, 128)),
    ),
    halved("lstm", 4000),
    halved("transformer", 1024),
    Row(
        "text, gpt-tiny with a cache, one at a time",
        TOKENS,
        (
            Program("unrolled", "generate_ours.py"),
            Program("transformers", "generate_transformers.py", environment="transformers"),
        ),
    ),
    Row(
        "one word from the shell",
        SECONDS,
        (Program("NumPy engine", "shell.py", ("numpy",)), Program("PyTorch engine", "shell.py", ("torch",))),
    ),
    Row(
        "memory, self-attention layer",
        PER_SYMBOL,
        (Program("32,768 symbols", "attention.py", (32_768,)), Program("2,048 symbols", "attention.py", (2048,))),
        rounds=1,
    ),
    Row("data, 1,000,000 pairs", SECONDS, (Program("unrolled", "data.py", ("seconds",)),), rounds=3),
    Row("data, 1,000,000 pairs, most memory", MEMORY, (Program("unrolled", "data.py", ("GB",)),), rounds=1),
    Row(
        "processes, training of the LSTM, two threads in all",
        TOKENS,
        (Program("two processes", "processes.py", (2,)), Program("one process", "processes.py", (1,))),
    ),
]
