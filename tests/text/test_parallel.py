"""Two files, a pair a line number."""

import pytest

from unrolled.config import Data
from unrolled.errors import DataError
from unrolled.text import read_parallel


@pytest.fixture
def files(tmp_path):
    def write(source, target):
        (tmp_path / "src.txt").write_bytes(source.encode())
        (tmp_path / "tgt.txt").write_bytes(target.encode())
        return tmp_path / "src.txt", tmp_path / "tgt.txt"

    return write


def test_lines_are_paired_and_tabs_are_text(files):
    pairs = read_parallel(*files("a\tb\nc\u2028d\n", "x\r\ny\tz"), Data())
    assert pairs.sources == ["a\tb", "c\u2028d"]
    assert pairs.targets == ["x", "y\tz"]
    assert pairs.lines.tolist() == [1, 2]
    assert "1 of 2 lines end with CR LF" in pairs.notes[0]


def test_unequal_numbers_of_lines_are_refused_with_a_hint(files):
    with pytest.raises(DataError, match=r"tgt\.txt: 3 source lines, 4 target lines; .*; target line 2 is blank"):
        read_parallel(*files("a\nb\nc\n", "x\n\ny\nz\n"), Data())
    with pytest.raises(DataError, match=r"2 source lines, 1 target line; expected as many of both$"):
        read_parallel(*files("a\nb\n", "x\n"), Data())


def test_a_blank_on_one_side_is_left_out_and_named(files):
    pairs = read_parallel(*files("a\n\nc\n", "x\ny\n \n"), Data())
    assert (pairs.sources, pairs.targets, pairs.lines.tolist()) == (["a"], ["x"], [1])
    assert "2 lines left out: 1 without source (line 2), 1 without target (line 3)" in pairs.notes[-1]


def test_each_file_counts_in_the_digest(files):
    first = read_parallel(*files("a\n", "x\n"), Data()).sha256
    assert first == read_parallel(*files("a\n", "x\n"), Data()).sha256
    assert first != read_parallel(*files("a\n", "y\n"), Data()).sha256
    assert first != read_parallel(*files("b\n", "x\n"), Data()).sha256
