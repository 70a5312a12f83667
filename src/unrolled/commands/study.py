"""`unrolled study`: the field's claims, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unrolled.commands.reporting import note
from unrolled.errors import ConfigError


def study(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="See --list.", show_default=False)] = None,
    is_listing: Annotated[bool, typer.Option("--list", help="Print the studies and their claims.")] = False,
    is_full: Annotated[
        bool, typer.Option("--full", help="Take longer than ten minutes: more seeds, more sizes.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="For NAME.json and NAME.png.")] = Path("studies"),
) -> None:
    """Measure a claim of the field: one table, one figure, and whether it held here."""
    from unrolled.studies import STUDIES, find, run

    if is_listing:
        for known in STUDIES.values():
            print(f"{known.name:<18} {known.claim} ({known.paper})")
        return
    if name is None:
        raise ConfigError("study: expected a name; `unrolled study --list` prints them")
    chosen = find(name)
    print(f"{chosen.claim}\n({chosen.paper})\n", flush=True)
    result = run(chosen, out, size="full" if is_full else "default", tell=note)
    print("\n".join(result.lines()))
    print(f"\n{out / name}.png, {out / name}.json")
