"""The states that training can go on from: immutable files, and one small JSON file that commits each state.

`state-00000040.json` names the files that the state needs, with their SHA-256, and carries its own. It is written last,
so a state is complete or does not exist. Weights of the best and of averaged steps are shared between states. The
newest two are kept: should the newest be damaged later, the previous one is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from unrolled.errors import CheckpointError
from unrolled.runs.atomic import digest_file, digest_of, sweep, write_atomic
from unrolled.runs.tensors import Arrays, decode_tensors, encode_tensors

__all__ = ["SavedState", "States"]

_KEEP = 2
_STATE = re.compile(r"state-(\d+)\.json")


@dataclasses.dataclass(frozen=True)
class SavedState:
    """One complete state, as read back."""

    step: int
    values: dict[str, Any]
    """What fits JSON."""
    arrays: dict[str, dict[str, Any]]
    """Groups of named arrays."""
    damage: tuple[str, ...]
    """Why newer states were passed over, one line each."""


class States:
    """The states in a run's `resume` folder.

    Parameters
    ----------
    folder : Path
        Made at the first save.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Steps of all states, the newest first, whether they verify or not."""
        matches = (_STATE.fullmatch(path.name) for path in self.folder.glob("state-*.json"))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def save(self, step: int, values: Mapping[str, Any], arrays: Mapping[str, Callable[[], Arrays]]) -> None:
        """Commit a state, then drop the states and files that are no longer needed.

        Parameters
        ----------
        step : int
            The optimiser step after which the state was taken.
        values : mapping
            What fits JSON.
        arrays : mapping of str to callable
            Groups of arrays by name, e.g. `weights-40`; a group that an earlier state has written is not asked for.
        """
        self.folder.mkdir(exist_ok=True)
        written = self._written(arrays.keys())
        files = {name: written.get(name) or self._write_group(name, make()) for name, make in arrays.items()}
        state = {"step": step, "values": dict(values), "files": files}
        content = {"sha256": digest_of(_canonical(state)), "state": state}
        write_atomic(self._path(step), json.dumps(content, allow_nan=False).encode())
        self._drop_old()

    def load(self) -> SavedState:
        """The newest complete state.

        Raises
        ------
        CheckpointError
            If there is none, or all are damaged; the message names what is wrong with each.
        """
        damage: list[str] = []
        for step in self.steps():
            try:
                return self._load(step, damage)
            except CheckpointError as error:
                damage.append(str(error).split("\n")[0])
        if not damage:
            raise CheckpointError(f"{self.folder} holds no state to resume from; start the run again")
        raise CheckpointError(f"no state can be resumed from: {damage[0]}\n" + "\n".join(damage[1:]))

    def newest_complete(self) -> int | None:
        """Step of the newest state whose files all verify; none if there is none."""
        for state in self._readable():
            if all(self._is_intact(name, digest) for name, digest in state["files"].items()):
                return int(state["step"])
        return None

    def drop_after(self, step: int) -> None:
        """Forget newer states than the one that training goes on from: damaged ones, which were passed over."""
        for newer in self.steps():
            if newer > step:
                self._path(newer).unlink()
        self._drop_unused()

    def sweep(self) -> None:
        """Remove what killed writers left behind: temporary files, old states, and files that no state names."""
        if self.folder.is_dir():
            sweep(self.folder)
            self._drop_old()

    def clear(self) -> None:
        """Remove all states."""
        self.drop_after(-1)
        self.sweep()

    # --- files -------------------------------------------------------------------------------------------------------

    def _path(self, step: int) -> Path:
        return self.folder / f"state-{step:08}.json"

    def _group_path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _write_group(self, name: str, arrays: Arrays) -> str:
        content = encode_tensors(arrays)
        write_atomic(self._group_path(name), content)
        return digest_of(content)

    def _written(self, names: Collection[str]) -> dict[str, str]:
        """Those of the named groups that lie undamaged in the folder, with their digests."""
        known = {name: digest for state in self._readable() for name, digest in state["files"].items() if name in names}
        return {name: digest for name, digest in known.items() if self._is_intact(name, digest)}

    def _read(self, step: int) -> dict[str, Any]:
        where = self._path(step)
        try:
            content = json.loads(where.read_bytes())
            state: dict[str, Any] = content["state"]
            is_intact = content["sha256"] == digest_of(_canonical(state))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{where} is damaged: it cannot be read") from error
        if not is_intact:
            raise CheckpointError(f"{where} was altered: its SHA-256 does not fit")
        return state

    def _load(self, step: int, damage: list[str]) -> SavedState:
        state = self._read(step)
        arrays = {name: self._read_group(name, digest) for name, digest in state["files"].items()}
        return SavedState(step=step, values=state["values"], arrays=arrays, damage=tuple(damage))

    def _read_group(self, name: str, digest: str) -> dict[str, Any]:
        where = self._group_path(name)
        if not where.is_file():
            raise CheckpointError(f"{where} is missing")
        content = where.read_bytes()
        arrays = decode_tensors(content, where)
        if digest_of(content) != digest:
            raise CheckpointError(f"{where} was altered: its SHA-256 does not fit")
        return arrays

    def _readable(self) -> list[dict[str, Any]]:
        readable = []
        for step in self.steps():
            with contextlib.suppress(CheckpointError):
                readable.append(self._read(step))
        return readable

    def _is_intact(self, name: str, digest: str) -> bool:
        where = self._group_path(name)
        return where.is_file() and digest_file(where) == digest

    def _drop_old(self) -> None:
        for old in self.steps()[_KEEP:]:
            self._path(old).unlink()
        self._drop_unused()

    def _drop_unused(self) -> None:
        used = {name for state in self._readable() for name in state["files"]}
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in used:
                path.unlink()


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
