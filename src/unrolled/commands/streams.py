"""Lines in and out of the commands: what a pipe has ready, UTF-8 under any locale, files whole or not at all."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import BinaryIO, Protocol

BLOCK = 1 << 16  # bytes asked of the system at a time; also a pipe's usual capacity
AHEAD = 64  # blocks that may wait, so that a fast writer cannot fill the memory
MOST_LINES = 2048  # lines answered together
LINE_ENDS = str.maketrans("\n\r", "\ufffd\ufffd")


class Raw(Protocol):
    """What bytes are read from: `read` returns what there is, at least one byte before the end."""

    def read(self, size: int, /) -> bytes | None:
        """Read at most `size` bytes."""


def speak_utf8() -> None:
    """Make the standard streams UTF-8 with LF, whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def standard_input() -> Raw:
    """Standard input without a buffer, so that a read returns as soon as anything is there."""
    buffer: BinaryIO = sys.stdin.buffer
    return getattr(buffer, "raw", buffer)


def arriving_lines(stream: Raw) -> Iterator[list[bytes]]:
    """Yield all complete lines that have arrived, each with its line end (the last may lack one).

    A thread reads while the caller works. So a line that comes alone is yielded alone and at once, and lines that pile
    up meanwhile are yielded together, at most `MOST_LINES` at a time.
    """
    blocks: Queue[bytes | BaseException] = Queue(maxsize=AHEAD)
    threading.Thread(target=_read_blocks, args=(stream, blocks), name="input", daemon=True).start()
    rest = b""
    while True:
        arrived = [blocks.get()]
        while arrived[-1] and not blocks.empty():
            arrived.append(blocks.get())
        if isinstance(arrived[-1], BaseException):
            raise arrived[-1]
        *lines, rest = (rest + b"".join(block for block in arrived if isinstance(block, bytes))).split(b"\n")
        lines = [line + b"\n" for line in lines]
        if not arrived[-1] and rest:
            lines.append(rest)
        for start in range(0, len(lines), MOST_LINES):
            yield lines[start : start + MOST_LINES]
        if not arrived[-1]:
            return


def _read_blocks(stream: Raw, blocks: Queue[bytes | BaseException]) -> None:
    try:
        while block := stream.read(BLOCK):
            blocks.put(block)
        blocks.put(b"")
    except BaseException as error:  # raised again where the lines are used
        blocks.put(error)


def blocks_of_lines(arrived: Iterator[list[bytes]], *, encoding: str) -> Iterator[list[str]]:
    """Decode lines as they arrive, or all at once where LF is not the byte 0x0A (UTF-16); line ends are cut off.

    Raises
    ------
    DataError
        At the first block that is not text in `encoding`, naming line and byte.
    """
    from unrolled.text.files import decode

    line, offset = 1, 0
    if "\n".encode(encoding) != b"\n":
        arrived = iter([[part for raw in arrived for part in raw]])
    for raw in arrived:
        if not raw:
            return
        data = b"".join(raw)
        text = decode(data, encoding, file="standard input", line=line, offset=offset)
        yield [part.removesuffix("\r") for part in text.removesuffix("\n").split("\n")]
        line, offset = line + len(raw), offset + len(data)


class Output:
    """Where a command's lines go: standard output, flushed after every block, or a file that appears when complete.

    Use it as a context; leaving it by an exception writes no file.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lines: list[str] = []

    def write(self, lines: list[str]) -> None:
        """Write lines, without their line ends; a line end inside of one, which bytes can form, becomes U+FFFD."""
        text = "".join(f"{line.translate(LINE_ENDS)}\n" for line in lines)
        if self.path is not None:
            self._lines.append(text)
            return
        sys.stdout.write(text)
        sys.stdout.flush()

    def __enter__(self) -> Output:
        if self.path is not None:
            check_writable(self.path)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.path is not None and kind is None:
            from unrolled.runs import write_atomic

            write_atomic(self.path, "".join(self._lines).encode())


def check_writable(path: Path) -> None:
    """Refuse an output path before any work is done for it.

    Raises
    ------
    ConfigError
        If its folder does not exist or cannot be written to, or it is a folder itself.
    """
    from tempfile import TemporaryFile

    from unrolled.errors import ConfigError
    from unrolled.runs import is_stream

    folder = path.resolve().parent
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a file to write")
    if not folder.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist; make it first")
    if is_stream(path):
        return
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{path}: the folder {path.parent} cannot be written to ({error.strerror})") from None
