"""Files of one folder, each with its SHA-256 in `manifest.json`.

Where a file replaces another, the manifest is written first and names both digests, so that a kill between the two
writes still leaves a folder that verifies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unrolled.errors import CheckpointError
from unrolled.runs.atomic import digest_of, write_atomic

__all__ = ["MANIFEST", "VerifiedFolder", "from_json", "to_json"]

MANIFEST = "manifest.json"


class VerifiedFolder:
    """A folder whose files are checked against its manifest on reading.

    Parameters
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        """Whether the file is there, verified or not."""
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """A file's bytes, not yet verified.

        Raises
        ------
        CheckpointError
            If it is missing.
        """
        if not self.has(name):
            raise CheckpointError(f"{self.path / name} is missing; restore it from a copy of the run")
        return (self.path / name).read_bytes()

    def verify(self, name: str, content: bytes) -> None:
        """Check bytes that `read` gave.

        Raises
        ------
        CheckpointError
            If they are not those that the manifest names.
        """
        entry = self._entries().get(name)
        if entry is None:
            raise CheckpointError(f"{self.path / name} is not in {MANIFEST}: it was not written by this run")
        expected, found = entry["sha256"], digest_of(content)
        if found not in (expected, entry["previous"]):
            raise CheckpointError(
                f"{self.path / name} was altered: expected SHA-256 {str(expected)[:12]}…, got {found[:12]}…"
            )

    def read_json(self, name: str) -> dict[str, Any]:
        """A verified file's JSON object."""
        content = self.read(name)
        self.verify(name, content)
        return from_json(content, self.path / name)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, each in place of its previous version."""
        entries = self._entries() if self.has(MANIFEST) else {}
        for name, content in files.items():
            previous = entries[name]["sha256"] if name in entries else None
            entries[name] = {"sha256": digest_of(content), "previous": previous}
        write_atomic(self.path / MANIFEST, to_json({"files": entries}))
        for name, content in files.items():
            write_atomic(self.path / name, content)

    def _entries(self) -> dict[str, dict[str, str | None]]:
        where = self.path / MANIFEST
        values = from_json(self.read(MANIFEST), where).get("files")
        if not isinstance(values, dict):
            raise CheckpointError(f"{where} is damaged: it lists no files; restore it from a copy of the run")
        return values


def to_json(values: Mapping[str, Any]) -> bytes:
    """A JSON object as readable UTF-8 bytes."""
    return (json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


def from_json(content: bytes, where: Path) -> dict[str, Any]:
    """The JSON object that bytes hold; `CheckpointError` names `where` if they hold anything else."""
    try:
        values = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{where} is damaged: not JSON ({error}); restore it from a copy of the run") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{where} is damaged: expected a JSON object, got {type(values).__name__}")
    return values
