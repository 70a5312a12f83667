"""The public face: what it exports, and what importing it loads."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, metadata

import pytest

import unrolled

BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ImportError(f"{{name}} is not installed")
sys.meta_path.insert(0, Absent())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {names!r} else find_spec(name, *rest)
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_every_exported_name_is_there_and_listed():
    assert sorted(unrolled.__all__) == unrolled.__all__
    for name in {*unrolled.__all__} - {"__version__"}:
        assert getattr(unrolled, name).__name__ == name
        assert getattr(unrolled, name).__doc__
        assert name in dir(unrolled)


@pytest.mark.parametrize("room", ["inference", "reference", "text"])
def test_every_name_of_a_room_is_there(room):
    package = import_module(f"unrolled.{room}")
    assert len(package.__all__) > 10
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_what_is_not_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="trian"):
        unrolled.trian  # noqa: B018


def test_the_version_is_that_of_the_distribution():
    assert unrolled.__version__ == metadata.version("unrolled")


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import unrolled", ("torch", "matplotlib", "numpy", "pydantic", "typer", "rich", "rapidfuzz")),
        ("import unrolled.commands.app", ("torch", "matplotlib", "numpy", "pydantic")),
        ("from unrolled.inference import load", ("torch", "matplotlib", "rapidfuzz", "unrolled.inference.evaluation")),
        ("from unrolled.inference import *; from unrolled.text import *", ("torch", "matplotlib")),
        (
            "from unrolled.reference import *; import unrolled.reference.engine, unrolled.metrics",
            ("torch", "matplotlib"),
        ),
    ],
)
def test_importing_loads_nothing_heavy(statement, absent):
    result = python(f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules])")
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_training_without_torch_says_what_to_install():
    result = python(BLOCK.format(names=("torch",)) + "import unrolled; unrolled.train")
    assert "MissingExtraError: training needs torch, which is not installed; run: pip install 'unrolled[train]'" in (
        result.stderr
    )
