"""A run's folder: all that prediction needs, and where training goes on from."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray
from pydantic import ValidationError

from unrolled.config import Config
from unrolled.errors import CheckpointError, ConfigError
from unrolled.runs.atomic import sweep
from unrolled.runs.manifest import MANIFEST, VerifiedFolder, from_json, to_json
from unrolled.runs.records import DataDigest, Environment
from unrolled.runs.states import States
from unrolled.runs.tensors import Arrays, check_tensors, decode_tensors, encode_tensors
from unrolled.version import __version__

__all__ = ["FORMAT", "Run", "check_free", "locked", "resume_command", "use_command"]

FORMAT = 1

_CONFIG, _VOCABULARY, _WEIGHTS = "config.json", "vocabulary.json", "model.safetensors"
_DATA, _ENVIRONMENT, _LOG = "data.json", "environment.json", "metrics.jsonl"
_LOCK = ".lock"


class Run:
    """One run folder; `Run.create` and `Run.open` are the ways in.

    Parameters
    ----------
    path : Path
        The folder.
    config : Config
        The resolved settings that it stores.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config
        self._files = VerifiedFolder(path)

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        config: Config,
        vocabulary: Mapping[str, Any],
        data: DataDigest,
        environment: Environment,
        overwrite: bool = False,
    ) -> Self:
        """Make a folder for a new run.

        Raises
        ------
        ConfigError
            If the folder holds a run already (and `overwrite` is false), or holds anything else.
        """
        check_free(Path(path), overwrite=overwrite)
        run = cls(Path(path), config)
        run._clear()
        identity = {"format": FORMAT, "version": __version__, "config": config.model_dump(mode="json")}
        run._files.write(
            {
                _CONFIG: to_json(identity),
                _VOCABULARY: to_json(vocabulary),
                _DATA: to_json(dataclasses.asdict(data)),
                _ENVIRONMENT: to_json(dataclasses.asdict(environment)),
            }
        )
        return run

    @classmethod
    def open(cls, path: str | Path, *, for_writing: bool = False) -> Self:
        """Open an existing run.

        Parameters
        ----------
        path : path
            The folder.
        for_writing : bool
            Whether the caller is the run's one writer; what killed writers left behind is then swept away.

        Raises
        ------
        CheckpointError
            If it is no run, lacks its settings, is damaged, or was written in a newer format.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} {'is a file' if folder.exists() else 'is missing'}; expected a run folder")
        run = cls(folder, _read_config(VerifiedFolder(folder)))
        if for_writing:
            sweep(folder)
            run.states.sweep()
        return run

    @property
    def states(self) -> States:
        """The states that training can go on from."""
        return States(self.path / "resume")

    @property
    def log_path(self) -> Path:
        """The log of events, one JSON object a line; it grows, so the manifest leaves it out."""
        return self.path / _LOG

    def events(self) -> list[dict[str, Any]]:
        """The logged events, in order; a last line that was cut by a kill is passed over."""
        lines = self.log_path.read_bytes().splitlines() if self.log_path.is_file() else []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    @property
    def has_weights(self) -> bool:
        """Whether there is a model to predict with."""
        return self._files.has(_WEIGHTS)

    def vocabulary(self) -> dict[str, Any]:
        """The vocabulary as its JSON object."""
        return self._files.read_json(_VOCABULARY)

    def data(self) -> DataDigest:
        """Which data the run was trained on."""
        return DataDigest.from_json(self._files.read_json(_DATA))

    def environment(self) -> Environment:
        """Versions, threads and matrix mode of the training."""
        return Environment.from_json(self._files.read_json(_ENVIRONMENT))

    def weights(self, expected: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
        """The weights to predict with.

        Parameters
        ----------
        expected : mapping of str to tuple of int
            Name and shape of every weight, from the inventory.

        Raises
        ------
        CheckpointError
            If the file is missing, damaged or foreign, or its tensors are not exactly the expected ones. If training
            can write it again, the message says how.
        """
        where = self.path / _WEIGHTS
        try:
            content = self._files.read(_WEIGHTS)
            tensors = decode_tensors(content, where)
            check_tensors(tensors, expected, where=where)
            self._files.verify(_WEIGHTS, content)
        except CheckpointError as error:
            raise CheckpointError(str(error) + self._offer()) from error
        return tensors

    def write_weights(self, weights: Arrays) -> None:
        """Store the weights to predict with, in place of the previous ones."""
        self._files.write({_WEIGHTS: encode_tensors(weights)})

    def write_environment(self, environment: Environment) -> None:
        """Store the environment of a continued training."""
        self._files.write({_ENVIRONMENT: to_json(dataclasses.asdict(environment))})

    def _clear(self) -> None:
        """Make the folder, without what an earlier run has left; other files stay. The manifest goes last."""
        self.path.mkdir(parents=True, exist_ok=True)
        sweep(self.path)
        self.states.clear()
        for name in (_WEIGHTS, _CONFIG, _VOCABULARY, _DATA, _ENVIRONMENT, _LOG, MANIFEST):
            (self.path / name).unlink(missing_ok=True)

    def _offer(self) -> str:
        step = self.states.newest_complete()
        if step is None:
            return ""
        return f"; the training state of step {step} is complete and writes it again: {resume_command(self.path)}"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other trainings out of a folder during a block; it is made if it is not there.

    The system gives a lock back when its process ends, however that is.

    Raises
    ------
    CheckpointError
        If another training is at work there.
    """
    from filelock import FileLock, Timeout

    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path / _LOCK, timeout=0)
    try:
        with contextlib.suppress(NotImplementedError):  # a file system without locks
            lock.acquire()
    except Timeout:
        raise CheckpointError(f"{path}: another process is training there; wait for its end, or end it") from None
    try:
        yield
    finally:
        lock.release()  # the file stays: whoever opened it before it was removed would hold a lock that nobody sees


def resume_command(path: Path) -> str:
    """What to type to go on with a training."""
    return f"unrolled train --resume {shlex.quote(str(path))}"


def use_command(path: Path, config: Config) -> str:
    """What to type to use a run."""
    use, rest = {"pairs": ("predict", "FILE"), "text": ("generate", "--prompt TEXT"), "frames": ("evaluate", "FILE")}[
        config.data.type
    ]
    return f"unrolled {use} {shlex.quote(str(path))} {rest}"


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise `ConfigError` unless a new run may be made at this path; nothing is changed."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; expected a folder for the run")
    found = {entry.name for entry in path.iterdir()} - {_LOCK} if path.is_dir() else set()
    if found and not _is_run(path):
        raise ConfigError(f"{path} is not empty and holds no run; choose another folder")
    if not overwrite and (_WEIGHTS in found or States(path / "resume").steps()):
        raise ConfigError(
            f"{path} holds a run already; choose another folder, or go on with it: {resume_command(path)}"
        )


def _is_run(path: Path) -> bool:
    """Whether a folder is a run, perhaps one that was killed while it was made; not any with a file named alike."""
    return isinstance(_entry(path / _CONFIG, "format"), int) or isinstance(
        _entry(path / MANIFEST, "files", _CONFIG), dict
    )


def _entry(file: Path, *keys: str) -> Any:
    """What stands under these keys of a JSON file; none if it is no such file."""
    try:
        content = json.loads(file.read_bytes())
        for key in keys:
            content = content[key]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return content


def _read_config(files: VerifiedFolder) -> Config:
    """The settings of a run; the format number is judged before anything else of the file."""
    where = files.path / _CONFIG
    if not files.has(_CONFIG):
        raise CheckpointError(f"{where} is missing: not a run, or its config was deleted; restore it from a copy")
    content = files.read(_CONFIG)
    identity = from_json(content, where)
    number = identity.get("format")
    if not isinstance(number, int):
        raise CheckpointError(f"{where} is not the config of a run: it has no format number")
    if number > FORMAT:
        raise CheckpointError(
            f"{where}: format {number} is newer than this program, which reads up to {FORMAT}; update it"
        )
    files.verify(_CONFIG, content)
    try:
        return Config.model_validate(identity["config"])
    except ValidationError as error:
        raise CheckpointError(f"{where}: settings of unrolled {identity['version']} unknown here\n{error}") from error
