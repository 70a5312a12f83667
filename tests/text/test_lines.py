import gzip
import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.errors import DataError
from unrolled.text import read_lines


def lines_of(content: bytes, **settings) -> list[str]:
    return list(read_lines(io.BytesIO(content), **settings))


def test_blank_lines_are_kept():
    assert lines_of(b"ab\n\ncd\n   \nef\n") == ["ab", "", "cd", "   ", "ef"]
    assert lines_of(b"") == []
    assert lines_of(b"\n") == [""]
    assert lines_of(b"\n\nx") == ["", "", "x"]


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"])), max_size=5))
def test_every_line_comes_back(lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    marked = [line.removeprefix("\ufeff") if place == 0 else line for place, line in enumerate(lines)]
    assert lines_of(content) == marked
    assert lines_of(content.replace(b"\n", b"\r\n")) == marked


pieces = st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b"\x80", "é".encode(), b"\xef\xbb\xbf", b"\xff\xfe", b"\t"])


@given(st.lists(pieces, max_size=12).map(b"".join))
def test_streams_and_files_agree(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_bytes(content)

    def outcome(source):
        try:
            return list(read_lines(source))
        except DataError as error:
            return str(error).split(": ", 1)[1].split(";")[0]  # the guess may look at more

    if b"\n" not in content and b"\r" in content[:-1]:
        return  # a whole file is refused for its old line ends; a stream cannot know
    with path.open("rb") as stream:
        assert outcome(stream) == outcome(path)


def test_files_may_be_compressed(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(gzip.compress(b"a\n\nb\n"))
    assert list(read_lines(path)) == ["a", "", "b"]


def test_bad_bytes_are_placed_in_the_whole_stream():
    lines = read_lines(io.BytesIO(b"ab\tx\ncan\x92t\ty\n"))
    assert next(lines) == "ab\tx"
    with pytest.raises(DataError, match=r"input, line 2: column 4 \(byte 8 of the file, 0x92\) is not UTF-8"):
        next(lines)
    with pytest.raises(DataError, match="input, line 3: column 2 is a NUL character"):
        lines_of(b"a\nb\nc\0\n")
    with pytest.raises(DataError, match="input: is UTF-16"):
        lines_of("a\n".encode("utf-16"))


def test_wide_encodings_are_read_when_declared():
    assert lines_of("a\nж\n\n".encode("utf-16"), encoding="utf-16") == ["a", "ж", ""]


def test_a_pipe_is_answered_line_by_line():
    code = (
        "import sys; from unrolled.text import read_lines\n"
        "for line in read_lines(sys.stdin.buffer): print(line.upper(), flush=True)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}
    )
    with child:
        for line in (b"ab\n", b"\n", b"cd\n"):
            child.stdin.write(line)
            child.stdin.flush()
            assert child.stdout.readline() == line.upper()
        child.stdin.close()
        assert child.stdout.read() == b""
    assert child.returncode == 0
