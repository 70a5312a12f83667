"""Running text in one file, several, or a folder, read in blocks so that it may be larger than memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from unrolled.config import Text
from unrolled.errors import DataError
from unrolled.text.files import read_blocks
from unrolled.text.normal_form import normalise

__all__ = ["Corpus", "Paths", "list_files"]

Paths = str | Path | Sequence[str | Path]


def list_files(paths: Paths) -> list[Path]:
    """The files of a corpus: those named, and of a folder all that are not hidden, in the order of their paths.

    Raises
    ------
    DataError
        If one does not exist, or a folder holds no file.
    """
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if not path.exists():
            raise DataError("no such file", file=path)
        inside = sorted(entry for entry in path.rglob("*") if _is_text(entry, path)) if path.is_dir() else [path]
        if not inside:
            raise DataError("is a folder without files; expected text files", file=path)
        found += inside
    return found


def _is_text(entry: Path, folder: Path) -> bool:
    return entry.is_file() and not any(part.startswith(".") for part in entry.relative_to(folder).parts)


class Corpus:
    """Files one after the other as one text, in normal form, with LF as line end.

    Where a file does not end with a line, or with a document where these are marked, that end is put in.

    Parameters
    ----------
    paths : path or sequence of paths
        See `list_files`.
    text : Text
        Encoding, normal form and end of documents.
    """

    def __init__(self, paths: Paths, text: Text) -> None:
        self.files = list_files(paths)
        self._text = text

    def sha256(self) -> str:
        """SHA-256 of a file's bytes as they lie on the disk; of several files, of their SHA-256 in order."""
        digests = [_digest(path) for path in self.files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """The text between two character positions, in blocks that end with a document, a line, or else a word.

        Raises
        ------
        DataError
            If a file cannot be read or is no text.
        """
        place = 0
        for block in self._all_blocks():
            part = block[max(start - place, 0) : None if stop is None else max(stop - place, 0)]
            if part:
                yield part
            place += len(block)
            if stop is not None and place >= stop:
                return

    def size(self) -> int:
        """Characters of the whole text."""
        return sum(map(len, self.blocks()))

    def cut_before(self, position: int) -> int:
        """The last place at or before `position` where symbols and marked documents are whole."""
        if self._text.document_end is None and self._text.units in ("character", "byte"):
            return position
        ends = (" ", "\n") if self._text.document_end is None else (self._text.document_end,)
        place, block = 0, ""
        for block in self.blocks(stop=position):
            place += len(block)
        return place - len(block) + max(_end_of_last(end, block) for end in ends)

    def notes(self) -> list[str]:
        """What a person should know about the files, one line each."""
        firsts = ((path, next(read_blocks(path, encoding=self._text.encoding), "")) for path in self.files)
        return [
            f"{path}: lines end with CR LF (Windows line ends); the CR is not part of the text"
            for path, block in firsts
            if "\r\n" in block
        ]

    def _all_blocks(self) -> Iterator[str]:
        rest = ""
        for path in self.files:
            for block in self._of_file(path):
                rest += block
                cut = len(rest) if self._text.document_end is None else _end_of_last(self._text.document_end, rest)
                if cut:
                    yield rest[:cut]
                rest = rest[cut:]
        if rest:
            yield rest

    def _of_file(self, path: Path) -> Iterator[str]:
        block, has_lines = "", False
        for raw in read_blocks(path, encoding=self._text.encoding):
            block = normalise(raw.replace("\r\n", "\n"), self._text.normal_form)
            has_lines = has_lines or "\n" in block
            if "\r" in block[:-1] and not has_lines:
                raise DataError("lines end with CR alone (old Mac); convert them to LF", file=path)
            yield block.removesuffix("\r")
        end = self._text.document_end or ("\n" if path != self.files[-1] else "")
        if not block.endswith(end):
            yield end


def _end_of_last(mark: str, text: str) -> int:
    """Where the last mark in a text ends; 0 if there is none."""
    return text.rfind(mark) + len(mark) if mark in text else 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
