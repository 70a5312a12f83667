"""`unrolled score`: how probable given outputs are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unrolled.commands.options import Engine, EngineOption, SourceOption, TargetOption, given_file
from unrolled.commands.reporting import note
from unrolled.errors import ConfigError

if TYPE_CHECKING:
    from unrolled.inference import Predictor, TextModel
    from unrolled.text import DataFile


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", show_default=False)],
    pairs: Annotated[
        Path | None, typer.Argument(metavar="PAIRS.tsv", help="Pairs to score.", show_default=False)
    ] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    engine: EngineOption = Engine.AUTO,
) -> None:
    """Print ln P(target | source) of each pair in nats, end symbol included, as TSV: line log_prob source target.

    Of a language model: ln P of each line of a text, its end included, after all lines before it: line log_prob text.
    """
    from unrolled.commands.products import fast_products
    from unrolled.inference import FrameModel, TextModel, load

    file = given_file(pairs, source, target)
    model = load(run, engine=engine.value)
    if isinstance(model, FrameModel):
        raise ConfigError(f"{run}: a model of vectors scores no texts; use: unrolled evaluate {run} FILE")
    with fast_products(engine.value):
        if isinstance(model, TextModel):
            _score_text(model, file)
        else:
            _score_pairs(model, file)


def _score_text(model: TextModel, file: DataFile) -> None:
    from unrolled.text import read_lines

    if isinstance(file, tuple):
        raise ConfigError("a language model scores one file of text; leave out --source and --target")
    lines = list(read_lines(file, encoding=model.codec.text.encoding))
    for message in model.inspect(lines):
        note(message)
    for number, (log_prob, line) in enumerate(zip(model.score(lines), lines, strict=True), start=1):
        print(f"{number}\t{log_prob:.6f}\t{line}")


def _score_pairs(model: Predictor, file: DataFile) -> None:
    from unrolled.text import read_pairs
    from unrolled.text.tasks import fixed_pairs, is_task, named_task

    data = model.codec.data
    given = fixed_pairs(named_task(str(file), data.task), "test") if is_task(file) else read_pairs(file, data)
    targets = given.targets or []
    notes = model.inspect(given.sources, given.features, lines=given.lines.tolist())
    for message in (*given.notes, *notes.messages()):
        note(message)
    scores = model.score(list(zip(given.sources, targets, strict=True)), given.features)
    for line, log_prob, read, written in zip(given.lines, scores, given.sources, targets, strict=True):
        print(f"{line}\t{log_prob:.6f}\t{read}\t{written}")
