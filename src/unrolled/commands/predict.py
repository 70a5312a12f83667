"""`unrolled predict`: one answer a line."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from unrolled.commands.options import Engine, EngineOption
from unrolled.commands.reporting import note
from unrolled.commands.streams import Output, arriving_lines, blocks_of_lines, standard_input

if TYPE_CHECKING:
    from unrolled.config import Data
    from unrolled.decoding import SamplingPolicy
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
    is_drawn: Annotated[
        bool, typer.Option("--sample", help="Draw outputs at random (--nbest N of them) instead of searching.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="With --sample: below 1 for more probable outputs.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="With --sample: among the K most probable symbols.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", metavar="P", help="With --sample: among the most probable that reach P.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="With --sample: the same seed gives the same outputs.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="What each output begins with.")
    ] = None,
    must_know: Annotated[
        bool, typer.Option("--refuse-unknown", help="End with an error at a symbol that training did not have.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--jsonl", help="One JSON object an output.")] = False,
    engine: EngineOption = Engine.AUTO,
    attention: Annotated[
        Path | None, typer.Option("--attention", metavar="DIR", help="Save a picture of each line's attention.")
    ] = None,
) -> None:
    """Predict one line for each line of FILE.

    Lines from a pipe are answered as soon as they arrive. Features stand in a column, and columns are ordered as in
    training; the target's may be there or not.
    """
    from unrolled.commands.products import fast_products
    from unrolled.inference import load_predictor

    if attention is not None:
        from unrolled import figures  # noqa: F401  # an absent library is told before any work is done

        attention.mkdir(parents=True, exist_ok=True)
    chance = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    policy = _policy({name: value for name, value in chance.items() if value is not None}, is_drawn, beam)
    request = Request(beam, num_best or 1, prefix, attention is not None, policy, seed or 0)
    model = load_predictor([run, *(members or [])], engine=engine.value)
    notes, warned = model.notes(), list[str]()
    form = _json_line if as_json else _tsv_line if num_best else _text_line
    with Output(out) as output, nullcontext() if file == "-" else fast_products(engine.value):
        for block in _inputs(file, model.codec.data):
            features = None if model.codec.source.features is None else block.features
            model.inspect(block.sources, features, notes=notes)
            if must_know:
                notes.refuse_unknown()
            answers = request.answers(model, block, features)
            output.write(_written(block, answers, form))
            if attention is not None:
                warned += _draw(model, block, answers, attention)
    for message in (*notes.messages(), *_first(warned)):
        note(message)


def _policy(chance: dict[str, float], is_drawn: bool, beam: int | None) -> SamplingPolicy | None:
    """How symbols are drawn; none for a search."""
    from unrolled.decoding import SamplingPolicy
    from unrolled.errors import ConfigError

    if not is_drawn:
        for name in chance:
            raise ConfigError(f"--{name.replace('_', '-')} is an option of --sample; add it, or leave this out")
        return None
    if beam is not None:
        raise ConfigError("--beam searches and --sample draws; leave one of them out")
    top_k = chance.get("top_k")
    return SamplingPolicy(
        temperature=chance.get("temperature", 1.0),
        top_k=None if top_k is None else int(top_k),
        top_p=chance.get("top_p", 1.0),
    )


class Request(NamedTuple):
    """What is asked of a model for each line."""

    beam: int | None
    num_outputs: int
    prefix: str | None
    need_attention: bool
    policy: SamplingPolicy | None
    """How outputs are drawn; none for the best ones."""
    seed: int

    def answers(
        self, model: Predictor, block: Block, features: Sequence[tuple[str, ...]] | None
    ) -> list[list[Prediction]]:
        """The outputs for each line of a block."""
        prefixes = None if self.prefix is None else [self.prefix] * len(block.sources)
        if self.policy is None:
            return model.search(
                block.sources,
                features,
                beam=self.beam,
                num_best=self.num_outputs,
                prefixes=prefixes,
                need_attention=self.need_attention,
            )
        return model.sample(
            block.sources,
            features,
            seed=self.seed,
            policy=self.policy,
            num_samples=self.num_outputs,
            lines=range(block.first_line, block.first_line + len(block.sources)),
            prefixes=prefixes,
            need_attention=self.need_attention,
        )


def _first(warned: Sequence[str]) -> list[str]:
    """One line for the warnings of all pictures."""
    more = f" (and {len(warned) - 1} more such warnings)" if len(warned) > 1 else ""
    return [warned[0] + more] if warned else []


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


def _draw(model: Predictor, block: Block, answers: Sequence[Sequence[Prediction]], folder: Path) -> list[str]:
    """Save the picture of each line's best output as `line-000001.png`; blank lines have none. Gives back warnings."""
    from unrolled import figures

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for row, (best, *_) in enumerate(answers):
            if best.attention is not None and best.target_symbols:
                drops = model.occlude(block.sources[row], best.text, block.features[row])
                figure = figures.attention(best.attention, best.source_symbols, best.target_symbols, occlusion=drops)
                figures.save(figure, folder / f"line-{block.first_line + row:06}.png")
    return [str(warning.message).partition("\n")[0] for warning in caught]
