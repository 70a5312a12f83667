"""Ids of a text on the disk, made once and then mapped into memory: a text may be larger than that."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tokens", "Writer", "store_key", "stored", "stored_facts"]

FORMAT = 1
FACTS = "facts.json"

Tokens = NDArray[np.integer[Any]]
"""Ids of a text in order, (N,); mapped from a file, so that a part is read when it is used."""


def store_key(content: Mapping[str, Any]) -> str:
    """Name of what depends on this content and on nothing else."""
    text = json.dumps({"format": FORMAT, **content}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def stored(folder: Path, make: Callable[[Writer], Mapping[str, Any]]) -> tuple[dict[str, Tokens], dict[str, Any]]:
    """Token arrays by name, and the facts that were found with them; made first if the folder is not there.

    A kill while they are made leaves nothing under the folder's name.

    Parameters
    ----------
    folder : Path
        Named by `store_key`.
    make : callable
        Writes the arrays and returns the facts, as plain JSON data.
    """
    if not _is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)  # what is left of a damaged one
        _make(folder, make)
    content = _content(folder)
    arrays = {name: _mapped(folder / f"{name}.bin", *array) for name, array in content["arrays"].items()}
    return arrays, content["facts"]


def stored_facts(folder: Path) -> dict[str, Any] | None:
    """What was found with the arrays of a folder; none if it is not there."""
    if not _is_whole(folder):
        return None
    facts: dict[str, Any] = _content(folder)["facts"]
    return facts


def _content(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    return content


def _is_whole(folder: Path) -> bool:
    """Whether all that was written is still there; what was cut off since is made again."""
    if not (folder / FACTS).is_file():
        return False
    arrays = _content(folder)["arrays"].items()
    files = ((folder / f"{name}.bin", count * np.dtype(kind).itemsize) for name, (kind, count) in arrays)
    return all(file.is_file() and file.stat().st_size == size for file, size in files)


def _mapped(file: Path, kind: str, count: int) -> Tokens:
    return np.memmap(file, dtype=kind, mode="r", shape=(count,)) if count else np.empty(0, dtype=kind)


class Writer:
    """Writes token arrays of a store.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.arrays: dict[str, tuple[str, int]] = {}
        """Type and number of ids of each array written."""

    def write(self, name: str, blocks: Iterable[Tokens], *, vocabulary_size: int) -> int:
        """Write an array block by block; the number of its ids."""
        kind = "uint16" if vocabulary_size <= 1 << 16 else "int32"
        count = 0
        with (self._folder / f"{name}.bin").open("wb") as file:
            for block in blocks:
                file.write(block.astype(kind).tobytes())
                count += block.size
            file.flush()
            os.fsync(file.fileno())
        self.arrays[name] = (kind, count)
        return count


def _make(folder: Path, make: Callable[[Writer], Mapping[str, Any]]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    temporary.mkdir()
    try:
        writer = Writer(temporary)
        facts = make(writer)
        content = json.dumps({"arrays": writer.arrays, "facts": facts}, ensure_ascii=False)
        (temporary / FACTS).write_text(content, encoding="utf-8")
        with suppress(OSError):  # another process was first: its store is the same
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
