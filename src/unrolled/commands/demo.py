"""`unrolled demo`: a pronunciation model from a dictionary, in minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unrolled.config import Config
    from unrolled.inference import Predictor, Report

NUM_SHOWN = 10
SHORT = {
    "training.minutes": 3.0,
    "training.optimizer.learning_rate": 4e-3,
    "training.average": "none",
    "model.encoder.num_layers": 1,
    "model.encoder.dropout": 0.0,
    "model.decoder.dropout": 0.0,
}
"""Beside the preset: three minutes are few epochs of a small model, and nothing is learnt by heart in them."""


def demo() -> None:
    """Learn to pronounce English in 3 minutes.

    Trains on the CMU Pronouncing Dictionary, then tests on words that it has never seen. Everything is in ./demo.
    """
    from unrolled import presets
    from unrolled.commands.cmudict import read_cmudict
    from unrolled.settings import resolve

    run_demo(Path("demo"), resolve(presets.g2p(), flags=SHORT), read_cmudict)


def run_demo(folder: Path, config: Config, read_words: Callable[[], dict[str, list[str]]]) -> None:
    """Split a dictionary, train, test, show; with the time that each stage takes.

    Parameters
    ----------
    folder : Path
        For the data, the run and the picture; an earlier demo there is replaced.
    config : Config
        Settings of the run.
    read_words : callable
        Gives the words and their pronunciations.
    """
    from unrolled.commands.cmudict import write_split
    from unrolled.commands.products import fast_products
    from unrolled.commands.train import finish, run_training
    from unrolled.inference import load_predictor

    seconds: dict[str, float] = {}
    with _timed("data", seconds):
        folder.mkdir(parents=True, exist_ok=True)
        split = write_split(read_words(), folder)
    with _timed("training", seconds):
        finish(run_training(str(split.train), dev=split.dev, config=config, out=folder / "run", overwrite=True))
    with _timed("testing", seconds), fast_products():
        model = load_predictor(folder / "run")
        report = model.evaluate(split.test)
    words = _chosen_words(report)
    with _timed("picture", seconds):
        picture = _draw(model, max(words, key=len), folder / "attention.png")
    print("\n".join(_summary(report, words)))
    print(f"attention picture: {picture}")
    print("time: " + ", ".join(f"{stage} {elapsed:.0f} s" for stage, elapsed in seconds.items()))
    print(f"now your own words: echo hello | unrolled predict {folder / 'run'}")


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start


def _chosen_words(report: Report) -> dict[str, int]:
    """Ten words spread evenly over the test set, and their places in it."""
    words = [str(word) for word in report.evaluation.references.keys]
    places = [place * len(words) // NUM_SHOWN for place in range(min(NUM_SHOWN, len(words)))]
    return {words[place]: place for place in places}


def _summary(report: Report, words: Mapping[str, int]) -> list[str]:
    errors, references = report.evaluation.errors, report.evaluation.references
    width = max(map(len, words))
    lines = [
        "",
        f"{len(references):,} words that were never seen in training; any of a word's pronunciations counts",
        f"  words wrong (WER)   {report.error_rate}",
        f"  phones wrong (PER)  {report.symbol_error_rate}",
        "",
        "ten of them: prediction, and the truth where it differs",
    ]
    for word, place in words.items():
        prediction, truth = report.predictions[references.first[place]], " ".join(errors.nearest[place])
        lines.append(f"  {word:<{width}}  {prediction}" + (f"  ({truth})" if errors.is_wrong[place] else ""))
    return [*lines, ""]


def _draw(model: Predictor, word: str, path: Path) -> Path:
    from unrolled import figures

    best = model.search([word], need_attention=True)[0][0]
    assert best.attention is not None
    figures.save(figures.attention(best.attention, best.source_symbols, best.target_symbols, title=word), path)
    return path
