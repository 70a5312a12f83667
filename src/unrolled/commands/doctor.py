"""`unrolled doctor`: why a run does not learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unrolled.diagnosis import Examination, Finding


def doctor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or not.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Data to look at instead of the training file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look for what is wrong with a run, its log, its data and its model; worst first.

    Leaves with 1 if something is broken, with 0 if nothing is, or if something is only suspect.
    """
    from unrolled.diagnosis import examine_run

    found = examine_run(run, data=data)
    print(json.dumps(found.to_json(), ensure_ascii=False) if as_json else "\n".join(_report(found)))
    if any(one.severity == "broken" for one in found):
        raise typer.Exit(1)


def _report(found: Examination) -> Iterator[str]:
    for one in found:
        yield from (*_finding_lines(one), "")
    if not found:
        yield "nothing found"
    yield f"checked: {', '.join(map(_plain, found.checked))}"
    for name, reason in found.failed.items():
        yield f"could not be checked: {_plain(name)} ({reason})"
    for name, reason in found.skipped.items():
        yield f"not checked: {_plain(name)} ({reason})"


def _finding_lines(one: Finding) -> Iterator[str]:
    follows = "" if one.cause is None else f" (can follow from {_plain(one.cause)})"
    yield f"{one.severity}: {_plain(one.name)}, {one.where}{follows}"
    yield f"  measured  {one.measured}"
    yield f"  right     {one.right}"
    yield f"  to do     {one.advice}"


def _plain(name: str) -> str:
    return name.removeprefix("check_").replace("_", " ")
