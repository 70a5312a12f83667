"""`unrolled score`: how probable given outputs are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unrolled.commands.options import Engine, EngineOption, SourceOption, TargetOption, given_file
from unrolled.commands.reporting import note


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", show_default=False)],
    pairs: Annotated[
        Path | None, typer.Argument(metavar="PAIRS.tsv", help="Pairs to score.", show_default=False)
    ] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    engine: EngineOption = Engine.AUTO,
) -> None:
    """Print ln P(target | source) of each pair in nats, end symbol included, as TSV: line log_prob source target."""
    from unrolled.inference import load
    from unrolled.text import read_pairs

    file = given_file(pairs, source, target)
    model = load(run, engine=engine.value)
    given = read_pairs(file, model.config.data)
    targets = given.targets or []
    notes = model.inspect(given.sources, given.features, lines=given.lines.tolist())
    for message in (*given.notes, *notes.messages()):
        note(message)
    scores = model.score(list(zip(given.sources, targets, strict=True)), given.features)
    for line, log_prob, read, written in zip(given.lines, scores, given.sources, targets, strict=True):
        print(f"{line}\t{log_prob:.6f}\t{read}\t{written}")
