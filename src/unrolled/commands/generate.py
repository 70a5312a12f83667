"""`unrolled generate`: a language model goes on from a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unrolled.commands.options import Engine, EngineOption
from unrolled.commands.reporting import note


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a language model.", show_default=False)],
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="What the text begins with.")] = "",
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1: more probable text; 0: always the most probable symbol.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="Draw among the K most probable symbols.")
    ] = None,
    top_p: Annotated[
        float, typer.Option("--top-p", metavar="P", help="Draw among the most probable symbols that reach this sum.")
    ] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Most symbols of new text.")] = 500,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed gives the same text.")] = 0,
    is_streamed: Annotated[bool, typer.Option("--stream", help="Show each symbol as soon as it is drawn.")] = False,
    engine: EngineOption = Engine.AUTO,
) -> None:
    """Write text that goes on from a prompt, which is printed too."""
    from unrolled.inference import load_text_model

    model = load_text_model(run, engine=engine.value)
    for message in model.inspect_prompt(prompt):
        note(message)
    pieces = model.stream(prompt, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        if is_streamed:
            sys.stdout.flush()
    sys.stdout.write("\n")
