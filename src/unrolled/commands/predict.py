"""`unrolled predict`: one answer a line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from unrolled.commands.options import Engine, EngineOption
from unrolled.commands.reporting import note
from unrolled.commands.streams import Output, arriving_lines, blocks_of_lines, standard_input

if TYPE_CHECKING:
    from unrolled.config import Data
    from unrolled.inference import Prediction, Predictor

FILE_LINES = 20_000  # lines of a file that are answered together, so that memory stays bounded


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.", show_default=False)],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="One source a line, or - for standard input.")] = "-",
    members: Annotated[
        list[Path] | None, typer.Option("--with", metavar="RUN", help="Another run of an ensemble; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write here, all or nothing.")] = None,
    beam: Annotated[int | None, typer.Option("--beam", min=1, help="Items kept at each step; 1 is greedy.")] = None,
    num_best: Annotated[
        int | None,
        typer.Option("--nbest", min=1, metavar="N", help="N best outputs as TSV: line rank prediction log_prob score."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--jsonl", help="One JSON object an output.")] = False,
    engine: EngineOption = Engine.AUTO,
    attention: Annotated[
        Path | None, typer.Option("--attention", metavar="DIR", help="Save a picture of each line's attention.")
    ] = None,
) -> None:
    """Predict one line for each line of FILE.

    Lines from a pipe are answered as soon as they arrive. A model with features reads them from the column after the
    source; lines of a test file may be given as they are.
    """
    from unrolled.inference import load_predictor

    if attention is not None:
        from unrolled import figures  # noqa: F401  # an absent library is told before any work is done

        attention.mkdir(parents=True, exist_ok=True)
    model = load_predictor([run, *(members or [])], engine=engine.value)
    notes = model.notes()
    form = _json_line if as_json else _tsv_line if num_best else _text_line
    with Output(out) as output:
        for block in _inputs(file, model.codec.data):
            features = None if model.codec.source.features is None else block.features
            model.inspect(block.sources, features, notes=notes)
            answers = model.search(
                block.sources, features, beam=beam, num_best=num_best or 1, need_attention=attention is not None
            )
            output.write(_written(block, answers, form))
            if attention is not None:
                _draw(model, block, answers, attention)
    for message in notes.messages():
        note(message)


class Block(NamedTuple):
    """Lines that are answered together."""

    first_line: int
    sources: list[str]
    features: list[tuple[str, ...]]


def _inputs(file: str, data: Data) -> Iterator[Block]:
    from unrolled.text import read_lines
    from unrolled.text.tasks import fixed_pairs, is_task, named_task

    if file == "-":
        blocks = blocks_of_lines(arriving_lines(standard_input()), encoding=data.encoding)
    else:
        is_drawn = is_task(file)
        lines = (
            fixed_pairs(named_task(file, data.task), "test").sources
            if is_drawn
            else list(read_lines(file, encoding=data.encoding))
        )
        blocks = (lines[start : start + FILE_LINES] for start in range(0, len(lines), FILE_LINES))
    first_line = 1
    for block in blocks:
        yield _parsed(block, data, file=file, first_line=first_line)
        first_line += len(block)


def _parsed(lines: Sequence[str], data: Data, *, file: str, first_line: int) -> Block:
    from unrolled.errors import DataError
    from unrolled.text import parse_input

    block = Block(first_line, [], [])
    for number, line in enumerate(lines, start=first_line):
        try:
            source, features = parse_input(line, data)
        except DataError as error:
            raise DataError(str(error), file="standard input" if file == "-" else file, line=number) from None
        block.sources.append(source)
        block.features.append(features)
    return block


Form = Callable[[int, str, int, "Prediction"], str]
"""(line, source, rank, prediction) to one line of output."""


def _written(block: Block, answers: Sequence[Sequence[Prediction]], form: Form) -> list[str]:
    return [
        form(line, source, rank, prediction)
        for line, (source, predictions) in enumerate(zip(block.sources, answers, strict=True), start=block.first_line)
        for rank, prediction in enumerate(predictions, start=1)
    ]


def _text_line(_line: int, _source: str, _rank: int, prediction: Prediction) -> str:
    return prediction.text


def _tsv_line(line: int, _source: str, rank: int, prediction: Prediction) -> str:
    return f"{line}\t{rank}\t{prediction.text}\t{prediction.log_prob:.6f}\t{prediction.score:.6f}"


def _json_line(line: int, source: str, rank: int, prediction: Prediction) -> str:
    values = {
        "line": line,
        "rank": rank,
        "source": source,
        "prediction": prediction.text,
        "log_prob": _number(prediction.log_prob),
        "score": _number(prediction.score),
        "is_finished": prediction.is_finished,
    }
    return json.dumps(values, ensure_ascii=False)


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _draw(model: Predictor, block: Block, answers: Sequence[Sequence[Prediction]], folder: Path) -> None:
    """Save the picture of each line's best output as `line-000001.png`; blank lines have none."""
    from unrolled import figures

    for row, (best, *_) in enumerate(answers):
        if best.attention is not None and best.target_symbols:
            drops = model.occlude(block.sources[row], best.text, block.features[row])
            figure = figures.attention(best.attention, best.source_symbols, best.target_symbols, occlusion=drops)
            figures.save(figure, folder / f"line-{block.first_line + row:06}.png")
