"""Lines from pipes as they arrive, and files that are whole or absent."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest

from unrolled.commands import streams
from unrolled.commands.streams import Output, arriving_lines, blocks_of_lines
from unrolled.errors import ConfigError, DataError


@pytest.fixture
def pipe():
    """A writing function and the reading end."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        yield writer, reader
        writer.close()
        for thread in threading.enumerate():
            if thread.name == "input":  # or it would read from the next test's pipe, which gets the same number
                thread.join(timeout=10)


def test_a_line_is_there_before_the_next_is_written(pipe):
    writer, reader = pipe
    arrived = arriving_lines(reader)
    for line in (b"ab\n", "ß\n".encode(), b"\n"):
        writer.write(line)
        assert next(arrived) == [line]


def test_half_a_line_waits_for_its_end(pipe):
    writer, reader = pipe
    arrived = arriving_lines(reader)
    writer.write(b"ab\nhal")
    assert next(arrived) == [b"ab\n"]
    threading.Timer(0.05, writer.write, [b"f\n"]).start()
    assert next(arrived) == [b"half\n"]


def test_many_lines_come_together_in_order_and_none_is_lost(pipe):
    writer, reader = pipe
    expected = [f"{number}\n".encode() for number in range(30_000)]

    def write():
        writer.write(b"".join(expected))
        writer.write(b"the end without a line end")
        writer.close()

    threading.Thread(target=write).start()
    blocks = list(arriving_lines(reader))
    assert [line for block in blocks for line in block] == [*expected, b"the end without a line end"]
    assert len(blocks) < 1000
    assert max(map(len, blocks)) <= streams.MOST_LINES


def test_lines_that_wait_are_batched_up_to_a_limit(pipe, monkeypatch):
    monkeypatch.setattr(streams, "MOST_LINES", 3)
    writer, reader = pipe
    writer.write(b"a\nb\nc\nd\n")
    writer.close()
    assert list(arriving_lines(reader)) == [[b"a\n", b"b\n", b"c\n"], [b"d\n"]]


def test_an_empty_stream_has_no_lines(pipe):
    writer, reader = pipe
    writer.close()
    assert list(arriving_lines(reader)) == []


def test_a_failing_stream_fails_where_it_is_read():
    class Broken:
        def read(self, size):
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(arriving_lines(Broken()))


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        ([[b"a\n", b"b\n"], [b"c"]], [["a", "b"], ["c"]]),
        ([[b"a\r\n"], [b"\r\n", b"b\n"]], [["a"], ["", "b"]]),
        ([[b"\xef\xbb\xbfa\n"]], [["a"]]),
        ([["a\u2028b\x85c\n".encode()]], [["a\u2028b\x85c"]]),
        ([[b"\n"], [b"\n"]], [[""], [""]]),
    ],
)
def test_lines_are_decoded_and_lose_their_ends(raw, lines):
    assert list(blocks_of_lines(iter(raw), encoding="utf-8")) == lines


@pytest.mark.parametrize("text", ["", "é\n", "ċ\nა\r\n\nb"])  # U+010B and others hold the byte 0x0A
def test_wide_encodings_are_read_whole(text):
    data = text.encode("utf-16")
    arrived = ([line] for line in data.splitlines(keepends=True))
    blocks = list(blocks_of_lines(arrived, encoding="utf-16"))
    assert [line for block in blocks for line in block] == text.replace("\r", "").removesuffix("\n").split("\n")


def test_what_is_not_text_is_named_by_line_and_byte():
    blocks = blocks_of_lines(iter([[b"ab\tx\n"], [b"can\x92t\ty\n"]]), encoding="utf-8")
    assert next(blocks) == ["ab\tx"]
    with pytest.raises(DataError, match=r"^standard input, line 2: column 4 \(byte 8 of the file, 0x92\) is not UTF-8"):
        next(blocks)


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "out.txt"
    with Output(path) as output:
        output.write(["é", ""])
        output.write(["b"])
        assert list(tmp_path.iterdir()) == []
    assert path.read_bytes() == "é\n\nb\n".encode()


def test_a_line_is_one_line_whatever_is_in_it(tmp_path):
    with Output(tmp_path / "out.txt") as output:
        output.write(["a\nb\r", "\t"])
    assert (tmp_path / "out.txt").read_text() == "a\ufffdb\ufffd\n\t\n"


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), Output(path) as output:
        output.write(["new"])
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_are_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match="is a folder; expected a file to write"), Output(tmp_path):
        pytest.fail("entered")
    with pytest.raises(ConfigError, match="does not exist; make it first"), Output(tmp_path / "a" / "b"):
        pytest.fail("entered")


def test_a_folder_that_takes_no_file_is_refused_before_any_work(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ConfigError, match=r"cannot be written to \(Permission denied\)"), Output(tmp_path / "a"):
        pytest.fail("entered")
    with Output(Path(os.devnull)) as output:  # no file of its own
        output.write(["a"])
    assert Path(os.devnull).is_char_device()
