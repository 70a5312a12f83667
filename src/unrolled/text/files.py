"""From bytes on disk or in a pipe to lines of text, the same under every locale.

Files are UTF-8 unless told otherwise, plain or gzip (told by their first two bytes), and lines end at LF only:
U+2028, U+0085 or a vertical tab inside a line are ordinary characters. One CR before the LF belongs to the line end.
A byte order mark at the start is dropped. What cannot be text is refused with its line, column and byte.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from unrolled.errors import ConfigError, DataError

__all__ = ["TextFile", "read_blocks", "read_lines", "read_text"]

BLOCK = 1 << 22
"""Bytes of a large file that are decoded at once."""
GZIP_MAGIC = b"\x1f\x8b"
WIDE_MARKS = {  # the longer mark first: UTF-32-LE begins with UTF-16-LE's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True)
class TextFile:
    """A whole file as lines.

    Parameters
    ----------
    file : str
        Where it was read from.
    lines : list of str
        Its lines without line ends; a last line without LF counts, an empty rest after the last LF does not.
    num_carriage_returns : int
        Lines that ended with CR LF.
    sha256 : str
        Of the bytes as stored, before decompression.
    """

    file: str
    lines: list[str]
    num_carriage_returns: int
    sha256: str

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the file, one line each."""
        if not self.num_carriage_returns:
            return ()
        share = f"{self.num_carriage_returns} of {len(self.lines)} lines end"
        return (f"{self.file}: {share} with CR LF (Windows line ends); the CR is not part of the text",)


def read_text(path: str | Path, *, encoding: str = "utf-8") -> TextFile:
    """Read a text file, plain or gzip.

    Raises
    ------
    DataError
        If the file cannot be read, is a broken gzip, is not text in `encoding`, or holds NUL characters.
    ConfigError
        If `encoding` is no text encoding that Python knows.
    """
    file = str(path)
    stored = _read_bytes(file)
    data = _decompress(stored, file) if stored.startswith(GZIP_MAGIC) else stored
    text = decode(data, encoding, file=file)
    del data
    lines, num_carriage_returns = _split_lines(text, file)
    return TextFile(file, lines, num_carriage_returns, hashlib.sha256(stored).hexdigest())


def _read_bytes(file: str) -> bytes:
    with _telling(file):
        return Path(file).read_bytes()


@contextmanager
def _telling(file: str) -> Iterator[None]:
    """Say in our words why a file cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise DataError("no such file", file=file) from None
    except IsADirectoryError:
        raise DataError("is a directory; expected a text file", file=file) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"broken gzip file ({error}); make it again or unpack it", file=file) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DataError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=file) from None


def _decompress(stored: bytes, file: str) -> bytes:
    with _telling(file):
        return gzip.decompress(stored)


def read_blocks(path: str | Path, *, encoding: str = "utf-8", size: int = BLOCK) -> Iterator[str]:
    """Yield a text file, plain or gzip, in blocks of about `size` bytes that end with a line, or else with a word.

    The rules are those of `read_text`, but line ends stay as they are. A part without any space is one block.

    Raises
    ------
    DataError, ConfigError
        As for `read_text`; blocks before the fault have been yielded.
    """
    file = str(path)
    if not _is_lf_a_byte(encoding):
        stored = _read_bytes(file)
        yield decode(_decompress(stored, file) if stored.startswith(GZIP_MAGIC) else stored, encoding, file=file)
        return
    line, column, offset, rest = 1, 1, 0, b""
    with _opened(file) as stream:
        while block := _next_block(stream, size, file):
            data = rest + block
            cut = data.rfind(b"\n") + 1 or data.rfind(b" ") + 1
            if cut:
                text = decode(data[:cut], encoding, file=file, line=line, column=column, offset=offset)
                yield text
                line, offset = line + text.count("\n"), offset + cut
                column = len(text) - text.rfind("\n") if "\n" in text else column + len(text)
            rest = data[cut:]
    if rest:
        yield decode(rest, encoding, file=file, line=line, column=column, offset=offset)


def _is_lf_a_byte(encoding: str) -> bool:
    try:
        return "\n".encode(encoding) == b"\n"
    except LookupError:  # told where the first bytes are decoded
        return False


def _opened(file: str) -> BinaryIO:
    with _telling(file):
        with Path(file).open("rb") as stream:
            is_gzip = stream.read(2) == GZIP_MAGIC
        return cast("BinaryIO", gzip.open(file)) if is_gzip else Path(file).open("rb")


def _next_block(stream: BinaryIO, size: int, file: str) -> bytes:
    with _telling(file):
        return stream.read(size)


def _split_lines(text: str, file: str) -> tuple[list[str], int]:
    if "\n" not in text and "\r" in text[:-1]:
        raise DataError("lines end with CR alone (old Mac); convert them to LF", file=file)
    num_carriage_returns = text.count("\r\n") + text.endswith("\r")
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    elif text.endswith("\r"):
        lines[-1] = lines[-1][:-1]
    return lines, num_carriage_returns


def decode(data: bytes, encoding: str, *, file: str, line: int = 1, column: int = 1, offset: int = 0) -> str:
    """Decode `data`, which starts at `line`, `column` and byte `offset` of `file`; drop a byte order mark at byte 0."""
    if offset == 0:
        _refuse_wide(data, encoding, file)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise _undecodable(data, error, encoding, file=file, line=line, column=column, offset=offset) from None
    except LookupError:
        raise ConfigError(f"data.encoding: {encoding!r} is not a text encoding; for example utf-8, cp1252") from None
    except UnicodeError as error:  # UTF-16 without its mark and the like
        raise DataError(f"is not {encoding}: {error}", file=file) from None
    if "\0" in text:
        _refuse_nul(text, file=file, line=line, column=column)
    return text.removeprefix("\ufeff") if offset == 0 else text


def _refuse_wide(data: bytes, encoding: str, file: str) -> None:
    for mark, name in WIDE_MARKS.items():
        if data.startswith(mark) and _is_utf8(encoding):
            raise DataError(
                f"is {name.upper()} (its byte order mark says so), expected UTF-8; convert it or set"
                f" data.encoding={name}",
                file=file,
            )


def _is_utf8(encoding: str) -> bool:
    try:
        return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    except LookupError:
        return False


def _refuse_nul(text: str, *, file: str, line: int, column: int) -> None:
    before = text[: text.index("\0")]
    column = len(before) - before.rfind("\n") if "\n" in before else column + len(before)
    raise DataError(
        f"column {column} is a NUL character, so this is no text file, or one in UTF-16 without its mark;"
        " convert it to UTF-8 or try data.encoding=utf-16-le",
        file=file,
        line=line + before.count("\n"),
    )


def _undecodable(
    data: bytes, error: UnicodeDecodeError, encoding: str, *, file: str, line: int, column: int, offset: int
) -> DataError:
    before = data[: error.start]
    line += before.count(b"\n")
    column = (1 if b"\n" in before else column) + len(
        before[before.rfind(b"\n") + 1 :].decode(encoding, errors="replace")
    )
    name = "UTF-8" if _is_utf8(encoding) else encoding
    where = f"column {column} (byte {offset + error.start} of the file, 0x{data[error.start]:02x})"
    return DataError(f"{where} is not {name}; {_guess(data, error)}", file=file, line=line)


def _guess(data: bytes, error: UnicodeDecodeError) -> str:
    """Say what the bytes may be instead."""
    if error.reason == "unexpected end of data" and error.end == len(data):
        return "the file ends within a character; was it cut off?"
    if data[error.start] == 0xED and data[error.start + 1 : error.start + 2] >= b"\xa0":
        return "it is half of a surrogate pair (CESU-8); write the character as one"
    sample = data[max(0, error.start - 2000) : error.start + 2000]
    num_high = sum(byte >= 0x80 for byte in sample)
    try:
        sample.decode("cp1252")
    except UnicodeDecodeError:
        return "try data.encoding"
    # one byte a letter: in texts of other scripts most bytes are high
    return "looks like cp1252; try data.encoding" if 3 * num_high < len(sample) else "try data.encoding"


def read_lines(source: str | Path | BinaryIO, *, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a file or a binary stream, blank ones included, as soon as each is complete.

    The rules are those of `read_text`. A stream is read line by line and never ahead, so a pipe can be answered
    at once; a path may also be a gzip file.

    Parameters
    ----------
    source : path or binary stream
        For standard input pass `sys.stdin.buffer`.
    encoding : str
        Any encoding in which LF is the byte 0x0A; others (UTF-16, UTF-32) are read whole.

    Raises
    ------
    DataError
        At the first line that is not text in `encoding`; lines before it have been yielded.
    """
    if isinstance(source, (str, Path)):
        yield from read_text(source, encoding=encoding).lines
        return
    name = str(getattr(source, "name", "input"))
    if "\n".encode(encoding) != b"\n":
        yield from _split_lines(decode(source.read(), encoding, file=name), name)[0]
        return
    offset = 0
    for line, raw in enumerate(source, start=1):
        text = decode(raw, encoding, file=name, line=line, offset=offset)
        if text:  # a byte order mark alone is no line
            yield text.removesuffix("\n").removesuffix("\r")
        offset += len(raw)
