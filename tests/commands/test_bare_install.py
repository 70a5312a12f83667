"""The wheel in an environment that holds the base dependencies and nothing else: no PyTorch, no matplotlib."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("setuptools") is None, reason="building a wheel without network needs setuptools"),
    pytest.mark.skipif(os.name == "nt", reason="links to the installed packages"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(source))
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """Folder of programs of a fresh environment: links to what the wheel requires, and the wheel itself."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in _required(_requirements(wheel)):
        _link(metadata.distribution(name), packages)
    _pip("--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index", str(wheel))
    return folder / "bin"


def _pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, capture_output=True)


def _requirements(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name)).get_all("Requires-Dist")


def _required(requirements):
    """Names of what these requirements bring without any extra, and of what that brings."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found, waiting = set(), [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += map(Requirement, metadata.requires(name) or [])
    return found


def _link(distribution, packages):
    for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
        (packages / top).symlink_to(distribution.locate_file(top))


def _run(program, *arguments, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=True, env=environment, **options
    ).stdout


def test_the_environment_is_bare(bare):
    code = "from importlib.util import find_spec as f; print([n for n in ('torch', 'matplotlib', 'pytest') if f(n)])"
    assert _run(bare / "python", "-c", code) == "[]\n"


def test_a_run_predicts_scores_and_evaluates_there(bare, run, workplace, command):
    program, words = bare / "unrolled", workplace / "words.tsv"
    given = "abc\ndeed\n"
    assert _run(program, "predict", run, input=given) == command("predict", run, input=given).stdout
    ours, theirs = _run(program, "score", run, words).splitlines(), command("score", run, words).stdout.splitlines()
    columns = [[float(line.split("\t")[1]) for line in lines] for lines in (ours, theirs)]
    assert columns[0] == pytest.approx(columns[1], abs=1e-4)
    mine = json.loads(_run(program, "evaluate", run, words, "--json"))
    other = json.loads(command("evaluate", run, words, "--json").stdout)
    assert mine["symbol_error_rate"] == other["symbol_error_rate"]


def test_what_needs_pytorch_says_so_in_one_line(bare, run, workplace):
    for arguments in (["predict", run, "--engine", "torch"], ["train", workplace / "words.tsv", "--preset", "tiny"]):
        with pytest.raises(subprocess.CalledProcessError) as failed:
            _run(bare / "unrolled", *arguments, input="")
        assert failed.value.returncode == 2
        assert "run: pip install 'unrolled[train]'" in failed.value.stderr
        assert len(failed.value.stderr.splitlines()) == 1


def test_one_word_is_answered_quickly(bare, run):
    """Seconds of the processor, start included; half of the bound on a quiet machine."""
    import resource

    def seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _run(bare / "unrolled", "predict", run, input="abc\n")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.8
