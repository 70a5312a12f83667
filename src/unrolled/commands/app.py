"""All commands under one name. Each module imports what it needs inside its function, so that `--help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

import unrolled
from unrolled.commands.compare import compare
from unrolled.commands.demo import demo
from unrolled.commands.doctor import doctor
from unrolled.commands.evaluate import evaluate
from unrolled.commands.generate import generate
from unrolled.commands.predict import predict
from unrolled.commands.presets import presets
from unrolled.commands.report import report
from unrolled.commands.reporting import Commands, is_debug, reporting
from unrolled.commands.score import score
from unrolled.commands.show import show
from unrolled.commands.study import study
from unrolled.commands.sweep import sweep
from unrolled.commands.train import train

app = typer.Typer(
    cls=Commands,
    help="Sequence models, unrolled: train them on your own pairs, predict, evaluate, compare, look inside.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (train, predict, generate, evaluate, compare, score, doctor, show, report, study, sweep, presets, demo):
    app.command()(reporting(command))


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"unrolled {unrolled.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: ARG001  # its callback has done the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Take the options that stand before a command."""
    is_debug.set(debug)
