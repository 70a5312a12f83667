"""Do the tests of the NumPy engine notice a single wrong token?

Mutations are drawn at random (seeded) from all that the syntax trees of `src/unrolled/reference` offer: an arithmetic
operator, a comparison, a sign, a constant or index, a boolean. Each is planted alone in a copy of the package, and the
room's tests run against the copy until one fails. Survivors are printed with their line; a survivor is either a gap in
the tests or a change that means nothing.

    python benchmarks/mutate_reference.py [--count 100] [--begin 0] [--seed 0]

`--begin` goes on in the same drawn order, so that a long list can be done in portions.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.dont_write_bytecode = True

# Imported once, before the children fork: this takes longer than most of the tests.
import pytest  # noqa: E402
import torch  # noqa: E402, F401

ROOT = Path(__file__).resolve().parent.parent
ROOM = Path("src/unrolled/reference")
TESTS = ROOT / "tests/reference"
LIMIT = 240  # seconds of the processor; a mutant that hangs is killed
FIRST = {
    "attention.py": "test_reference_attention.py",
    "positions.py": "test_reference_attention.py",
    "scores.py": "test_reference_attention.py",
    "convolution.py": "test_reference_convolution.py",
    "frames.py": "../models/test_frames.py",
    "heads.py": "../models/test_frames.py",
    "cell.py": "test_cells.py",
    "cells.py": "test_cells.py",
    "recurrence.py": "test_recurrence_driver.py",
    "ops.py": "test_ops.py",
    "erf.py": "test_ops.py",
    "layers.py": "test_layers_of_transformers.py",
    "language_model.py": "test_reference_language_model.py",
    "multihead.py": "test_layers_of_transformers.py",
    "transformer.py": "test_layers_of_transformers.py",
    "engine.py": "test_numpy_engine.py",
    "gradient_check.py": "test_gradient_check.py",
    "optimizers.py": "test_optimizers.py",
}
"""Where a mutation of a file is most likely to be noticed; all other tests follow."""

OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.MatMult: "*", ast.BitAnd: "|", ast.BitOr: "&",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip


class Mutation(NamedTuple):
    """Replace characters [begin, end) of a file."""

    file: str
    line: int
    begin: int
    end: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Sites(ast.NodeVisitor):
    """All mutations that one file offers."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.source = path.read_text(encoding="utf-8")
        starts = [0]
        for line in self.source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self.lines, self.starts = self.source.splitlines(), starts
        self.found: list[Mutation] = []
        self.visit(ast.parse(self.source))

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def add(self, node: ast.expr, begin: int, end: int, text: str) -> None:
        try:
            ast.parse(self.source[:begin] + text + self.source[end:])
        except SyntaxError:
            return
        self.found.append(Mutation(self.name, node.lineno, begin, end, text))

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        begin, end = self.span(left)[1], self.span(right)[0]
        text = self.source[begin:end]
        stripped = text.strip("() \n")
        at = begin + text.index(stripped)
        self.add(left, at, at + len(stripped), OPERATORS[type(operator)])

    # annotations, docstrings and __all__ hold no behaviour

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Invariants for the type checker."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages."""

    def visit_keyword(self, node: ast.keyword) -> None:
        """`strict` of `zip` is an invariant too."""
        if node.arg != "strict":
            self.visit(node.value)

    # what can be wrong

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.between(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip((node.left, *node.comparators), node.ops, node.comparators, strict=False):
            self.between(left, right, operator)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.between(node.values[0], node.values[1], node.op)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        begin, end = self.span(node.target)[1], self.span(node.value)[0]
        text = self.source[begin:end]
        self.add(node.target, begin, end, text.replace(text.strip(), f"{OPERATORS[type(node.op)]}="))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.add(node, self.span(node)[0], self.span(node.operand)[0], "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(node, *self.span(node), str(not value))
        elif isinstance(value, int):
            self.add(node, *self.span(node), str(value + 1))
        elif isinstance(value, float):
            self.add(node, *self.span(node), repr(2.0 * value if value else 1.0))


def all_mutations() -> list[Mutation]:
    paths = sorted((ROOT / ROOM).glob("*.py"))
    return [mutation for path in paths for mutation in Sites(path).found]


def survives(mutation: Mutation, copy: Path) -> bool:
    """Plant a mutation and run the tests in a child process, the likeliest first."""
    path = copy / ROOM / mutation.file
    source = path.read_text(encoding="utf-8")
    path.write_text(source[: mutation.begin] + mutation.text + source[mutation.end :], encoding="utf-8")
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
            code = _run_tests(FIRST.get(mutation.file, "test_reference_models.py"))
        except BaseException:  # whatever a mutant does, the child must not run the parent's clean-up
            code = 1
        os._exit(code)
    _, status = os.waitpid(child, 0)
    path.write_text(source, encoding="utf-8")
    return status == 0


def _run_tests(first: str) -> int:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(ROOT)
    options = ["-x", "-q", "--no-header", "--tb=no"]
    return int(pytest.main([*options, str(TESTS / first)])) or int(pytest.main([*options, str(TESTS)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    offered = all_mutations()
    order = random.Random(arguments.seed).sample(offered, len(offered))
    drawn = order[arguments.begin : arguments.begin + arguments.count]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "src", copy / "src")
        sys.path.insert(0, str(copy / "src"))
        for room in ("models.engine", "decoding", "inference"):
            import_module(f"unrolled.{room}")
        assert not any(name.startswith("unrolled.reference") for name in sys.modules), "each child imports its own"
        if not survives(Mutation("ops.py", 1, 0, 0, ""), copy):
            sys.exit("the tests fail without a mutation; run them first")
        for number, mutation in enumerate(drawn, start=1):
            if survives(mutation, copy):
                survivors += 1
                line = (ROOT / ROOM / mutation.file).read_text(encoding="utf-8").splitlines()[mutation.line - 1]
                print(f"survived {mutation} -> {mutation.text!r}: {line.strip()}", flush=True)
            if number % 10 == 0:
                print(f"{number - survivors} of {number} killed", flush=True)
    print(f"{len(drawn) - survivors} of {len(drawn)} mutations killed ({len(offered)} offered, seed {arguments.seed})")


if __name__ == "__main__":
    main()
