"""`unrolled evaluate`: what is wrong, how sure that is, and where it goes wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unrolled.commands.options import Engine, EngineOption, SourceOption, TargetOption, given_file
from unrolled.commands.reporting import note
from unrolled.commands.streams import Output
from unrolled.errors import ConfigError

if TYPE_CHECKING:
    from unrolled.inference import FrameEvaluation, Report, TextEvaluation


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", show_default=False)],
    test: Annotated[
        Path | None, typer.Argument(metavar="TEST.tsv", help="Pairs with the right answers.", show_default=False)
    ] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    members: Annotated[
        list[Path] | None, typer.Option("--with", metavar="RUN", help="Another run of an ensemble; may be repeated.")
    ] = None,
    beam: Annotated[int | None, typer.Option("--beam", min=1, help="Items kept at each step; 1 is greedy.")] = None,
    bleu: Annotated[
        str | None,
        typer.Option(
            "--bleu",
            metavar="TOKENS",
            help="BLEU and chrF; words are cut by 13a, or none for text that is cut already.",
        ),
    ] = None,
    engine: EngineOption = Engine.AUTO,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", metavar="FILE", help="Write the predictions, one for each line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a run on TEST.tsv (or --source and --target): error rates with 95 % intervals, what goes wrong where.

    A source that stands on several lines has several accepted answers. Models of subwords are measured by BLEU, too. Of
    a language model, on a text: perplexity, and bits per character. Of a model of music: nats a frame of the test part.
    """
    from unrolled.commands.products import fast_products
    from unrolled.inference import FrameModel, Predictor, load

    file = given_file(test, source, target)
    model = load([run, *(members or [])], engine=engine.value)
    if not isinstance(model, Predictor):
        kind = "model of vectors" if isinstance(model, FrameModel) else "language model"
        given = {"--beam": beam, "--predictions": predictions, "--source": source, "--target": target, "--bleu": bleu}
        _refuse(given, kind)
        assert not isinstance(file, tuple), "refused above"
        with fast_products(engine.value):
            _print(model.evaluate(file), as_json=as_json)
        return
    with Output(predictions) as output, fast_products(engine.value):
        report = model.evaluate(file, beam=beam, tokenise=bleu)
        if predictions is not None:
            output.write(list(report.predictions))
    _print(report, as_json=as_json)


def _refuse(given: Mapping[str, object], kind: str) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigError(f"a {kind} predicts no answers to a test; leave out {', '.join(names)}")


def _print(report: Report | TextEvaluation | FrameEvaluation, *, as_json: bool) -> None:
    for message in report.notes:
        note(message)
    print(json.dumps(report.to_json(), ensure_ascii=False) if as_json else "\n".join(report.lines()))
