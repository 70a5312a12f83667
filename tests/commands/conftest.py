"""A run that was trained through the command line itself, once for all tests: words to their letters in reverse."""

from __future__ import annotations

import random

import pytest
from typer.testing import CliRunner

from unrolled.commands.app import app


@pytest.fixture
def command():
    """Run a command in this process: `command("predict", run, input=...)`."""

    def run(*arguments, **options):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)

    return run


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    """A folder with `words.tsv` (letters a to e and the space) and `run`."""
    folder = tmp_path_factory.mktemp("workplace")
    draw = random.Random(1)
    words = sorted({"".join(draw.choices("abcde", k=draw.randint(2, 7))) for _ in range(400)})
    lines = [f"{word}\t{' '.join(word[::-1].upper())}\n" for word in words]
    (folder / "words.tsv").write_text("".join(lines), encoding="utf-8")
    options = ["--preset", "tiny", "--seed", "3", "--out", str(folder / "run"), "data.target.units=space"]
    result = CliRunner().invoke(app, ["train", str(folder / "words.tsv"), *options])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="session")
def run(workplace):
    return workplace / "run"
