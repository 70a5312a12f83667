"""Files that are either the old one or the new one, never half of either.

A write goes to a temporary file in the same folder, is flushed to the disk, and then takes the final name in one step.
A process that is killed leaves at most its temporary file, which the next writer sweeps away.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["digest_file", "digest_of", "is_stream", "sweep", "write_atomic"]

_SUFFIX = ".partial"


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old or the new content under its name.

    Parameters
    ----------
    path : Path
        The file; its folder exists. A link stays one, and what it leads to is written. A device, a pipe and whatever
        `/dev/stdout` stands for get the content as it is: there is nothing to replace.
    content : bytes
        All of it.
    """
    if is_stream(path):
        with path.open("ab") as stream:
            stream.write(content)
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def is_stream(path: Path) -> bool:
    """Whether a path can be written to but is no file of its own: a device, a pipe, an open file of this process."""
    if not path.is_file():
        return path.exists()
    leads_to = path.parent / path.readlink() if path.is_symlink() else path  # /dev/stdout -> /proc/self/fd/1
    return any(place.parent.resolve().parts[1:2] == ("proc",) for place in (path, leads_to))


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no handle of a folder to flush
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed writers left in a folder; only for the folder's one writer."""
    for leftover in folder.glob(f".*{_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def digest_of(content: bytes) -> str:
    """SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes as they lie on the disk, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
