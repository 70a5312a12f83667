"""`unrolled train`: pairs to a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from unrolled.commands.options import SourceOption, TargetOption, data_file
from unrolled.errors import ConfigError

if TYPE_CHECKING:
    from unrolled.config import Config
    from unrolled.text import DataFile
    from unrolled.training import Outcome


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


def train(
    pairs: Annotated[
        str | None,
        typer.Argument(
            metavar="PAIRS.tsv",
            help="Pairs, one a line, or task:NAME; may be left out with --resume.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key.path=value]...", help="Settings, e.g. model.encoder.hidden_size=512."),
    ] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    dev: Annotated[
        Path | None, typer.Option("--dev", metavar="FILE", help="Pairs that choose the best weights; else held out.")
    ] = None,
    dev_source: Annotated[
        Path | None, typer.Option("--dev-source", metavar="FILE", help="Sources of these pairs, in place of --dev.")
    ] = None,
    dev_target: Annotated[
        Path | None, typer.Option("--dev-target", metavar="FILE", help="Their targets, line by line.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", metavar="NAMES", help="What each column holds: source,target[,features]; - skips one."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="Named settings; see `unrolled presets`.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--config", metavar="run.toml", help="A file of settings.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the run; runs/NAME for NAME.tsv otherwise.")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Start with a run's weights and vocabulary.")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="DIR", help="Finish an interrupted run.")] = None,
    device: Annotated[Device, typer.Option("--device", help="Where to compute.")] = Device.AUTO,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Of everything that is random.")] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="M", help="Time budget, evaluations included.")
    ] = None,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings and the data report; train nothing.")
    ] = False,
) -> None:
    """Train a model on PAIRS.tsv, or on --source and --target; the run's folder is all that prediction needs.

    Settings: defaults < --preset < --config < key.path=value < flags. Ctrl-C saves, and --resume goes on.
    """
    if pairs is not None and "=" in pairs and not Path(pairs).exists():  # no PAIRS.tsv: it is the first override
        overrides, pairs = [pairs, *(overrides or [])], None
    files = data_file(pairs, source, target)
    dev_files = data_file(dev, dev_source, dev_target, prefix="--dev-")
    flags = {
        "data.columns": columns,
        "data.format": "parallel" if isinstance(files, tuple) else None,
        "training.seed": seed,
        "training.minutes": minutes,
        **_task_flag(pairs),
    }
    if resume is not None:
        given: dict[str, object] = {
            "--preset": preset,
            "--config": file,
            "--out": out,
            "--from": start_from,
            "--dry-run": is_dry or None,
            "--columns": columns,
            "--seed": seed,
            "--minutes": minutes,
            "key.path=value": overrides or None,
        }
        _refuse_settings(given)
        finish(run_training(files, dev=dev_files, resume=resume, device=device))
        return
    config = _settings(pairs, preset, file, overrides or [], start_from, flags)
    if files is None:
        raise ConfigError("train: expected a file of pairs, for example: unrolled train words.tsv")
    if is_dry:
        _print_plan(files, dev_files, config, start_from)
        return
    first = Path(str(files[0] if isinstance(files, tuple) else files).removeprefix("task:").removesuffix(".gz"))
    out = out or Path("runs") / (first.resolve() if first.name in ("", "..") else first).stem
    finish(run_training(files, dev=dev_files, config=config, out=out, start_from=start_from, device=device))


def _task_flag(pairs: str | None) -> dict[str, str]:
    """`task:NAME` chooses whose settings `data.task` holds."""
    from unrolled.text.tasks import is_task, task_type

    return {"data.task.type": task_type(pairs)} if is_task(pairs) else {}


def _refuse_settings(given: Mapping[str, object]) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigError(f"--resume finishes a run with its own settings; leave out {', '.join(names)}")


def _settings(
    pairs: str | None,
    preset: str | None,
    file: Path | None,
    overrides: Sequence[str],
    start_from: Path | None,
    flags: Mapping[str, object],
) -> Config:
    from unrolled import presets
    from unrolled.runs import Run
    from unrolled.settings import resolve

    if preset is not None and start_from is not None:
        raise ConfigError("--from takes the settings of its run; leave out --preset")
    if start_from is None:
        preset = preset or presets.of_task(pairs)
    base = presets.get(preset) if preset is not None else Run.open(start_from).config if start_from else None
    return resolve(base, file=file, overrides=overrides, flags=flags)


def _print_plan(files: DataFile, dev: DataFile | None, config: Config, start_from: Path | None) -> None:
    from unrolled.settings import to_toml

    report = _report(files, dev, config, start_from)
    print(to_toml(config))
    print("\n".join(report))


def _report(files: DataFile, dev: DataFile | None, config: Config, start_from: Path | None) -> list[str]:
    """What is in the data; ids of a text are stored for as long as it takes."""
    from unrolled.config import FrameData, Text
    from unrolled.runs import Run
    from unrolled.text import Codec, TextCodec, prepare, prepare_frames, prepare_text

    if isinstance(config.data, FrameData):
        return list(prepare_frames(files, dev, config.data).report)
    saved = Run.open(start_from).vocabulary() if start_from else None
    if isinstance(config.data, Text):
        text_codec = None if saved is None else TextCodec.from_json(saved)
        with TemporaryDirectory() as folder:
            return prepare_text(files, dev, config.data, folder=Path(folder), codec=text_codec).report.lines()
    codec = None if saved is None else Codec.from_json(saved)
    return prepare(files, dev, config.data, seed=config.training.seed, codec=codec).report.lines()


def run_training(
    files: DataFile | None,
    *,
    dev: DataFile | None,
    device: Device = Device.AUTO,
    config: Config | None = None,
    out: Path | None = None,
    start_from: Path | None = None,
    resume: Path | None = None,
    overwrite: bool = False,
) -> Outcome:
    """Train with a progress bar, in the fastest exact mode of matrix products."""
    from rich.console import Console

    from unrolled.commands.products import fast_products
    from unrolled.commands.progress import TrainingProgress
    from unrolled.training import train

    with (
        TrainingProgress(None if _is_first_process() else Console(quiet=True)) as progress,
        fast_products(),
    ):
        return train(
            files,
            dev=dev,
            config=config,
            out=out,
            resume=resume,
            start_from=start_from,
            listeners=[progress],
            device=device.value,
            overwrite=overwrite,
        )


def finish(outcome: Outcome) -> None:
    """Say where the run is and how to use it, or how to go on with it; of several processes the first says it."""
    from unrolled.runs import Run, use_command

    if not _is_first_process():
        raise typer.Exit(outcome.exit_code)
    if outcome.exit_code:
        typer.echo(f"unrolled: interrupted at step {outcome.step}; go on with: {outcome.resume_command}", err=True)
        raise typer.Exit(outcome.exit_code)
    assert outcome.path is not None
    print(f"the run is in {outcome.path}; use it with: {use_command(outcome.path, Run.open(outcome.path).config)}")


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
