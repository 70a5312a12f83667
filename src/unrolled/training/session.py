"""Data files and settings to a trained run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from unrolled import models, parameters, presets
from unrolled.config import Config, longest_sequence
from unrolled.errors import ConfigError
from unrolled.models.device import DeviceName, choose_device
from unrolled.parameters import Parameter, Sizes
from unrolled.runs import DataDigest, FileDigest, Run, check_free
from unrolled.text import Codec, Prepared, prepare
from unrolled.training.checkpoints import Checkpoints
from unrolled.training.environment import current_environment, differences
from unrolled.training.epochs import Epochs
from unrolled.training.evaluation import DevSet
from unrolled.training.events import DataPrepared, Listener, Warned
from unrolled.training.listeners import JsonLinesLog, TensorBoard
from unrolled.training.loop import Trainer
from unrolled.training.matrix_products import MatrixMode, current_matrix_mode, matrix_mode
from unrolled.training.objective import PairObjective
from unrolled.training.outcome import Outcome

__all__ = ["train"]

FilePath = str | Path


def train(
    train_path: FilePath | None = None,
    *,
    dev: FilePath | None = None,
    config: Config | None = None,
    preset: str | None = None,
    out: FilePath | None = None,
    resume: FilePath | None = None,
    start_from: FilePath | None = None,
    listeners: Sequence[Listener] = (),
    device: DeviceName = "auto",
    overwrite: bool = False,
) -> Outcome:
    """Train a model on a file of pairs, into a run folder that is all prediction needs.

    Parameters
    ----------
    train_path : path
        File of pairs; may be left out with `resume`, which then takes the file that the run names.
    dev : path, optional
        File that chooses the best weights; without it distinct sources are held out.
    config : Config, optional
        Settings; those of `preset`, of `start_from`, or the defaults where it is absent.
    preset : str, optional
        Name of ready settings, instead of `config`.
    out : path
        The run folder to make; not with `resume`.
    resume : path, optional
        A run folder to go on with, exactly as if it had not stopped: its settings, data, steps and matrix mode.
    start_from : path, optional
        A run whose weights and vocabulary to start with, on new data and with a fresh optimiser.
    listeners : sequence of callables
        Called with every event; see `unrolled.training.events`.
    device : {"auto", "cpu", "cuda", "mps"}
    overwrite : bool
        Whether a run in `out` may be replaced.

    Returns
    -------
    Outcome
        How it ended; after an interruption with its exit code and the command that resumes.

    Raises
    ------
    ConfigError
        If arguments contradict each other or `out` holds a run.
    DataError
        If a data file cannot be used, or changed before it is resumed on.
    CheckpointError
        If the run to resume or to start from is damaged.
    DivergenceError
        If gradients are not finite in several steps in a row.
    """
    where = choose_device(device)
    if resume is not None:
        if config is not None or preset is not None or out is not None or start_from is not None:
            raise ConfigError(
                "resume takes settings and folder from the run; leave out config, preset, out and start_from"
            )
        return _resume(Run.open(resume, for_writing=True), train_path, dev, listeners, where)
    if train_path is None or out is None:
        raise ConfigError("training needs a file of pairs and a folder for the run, or a run to resume")
    if config is not None and preset is not None:
        raise ConfigError("settings come from config or from preset, not from both")
    if preset is not None:
        config = presets.get(preset)
    check_free(Path(out), overwrite=overwrite)
    start = _Start.fresh(config or Config()) if start_from is None else _Start.of_run(Run.open(start_from), config)
    prepared = _prepared(train_path, dev, start.config, start.codec, listeners)
    environment = current_environment(where, current_matrix_mode())
    run = Run.create(
        out,
        config=start.config,
        vocabulary=prepared.codec.to_json(),
        data=_digest(prepared),
        environment=environment,
        overwrite=overwrite,
    )
    return _fit(run, prepared, start.weights(prepared.codec), listeners, where, is_resumed=False)


def _resume(
    run: Run, train_path: FilePath | None, dev: FilePath | None, listeners: Sequence[Listener], device: torch.device
) -> Outcome:
    data, before = run.data(), run.environment()
    data.train.check(train_path)
    if data.dev is not None:
        data.dev.check(dev)
    elif dev is not None:
        raise ConfigError(f"{run.path} was started without a dev file; leave {dev} out to resume it")
    codec = Codec.from_json(run.vocabulary())
    dev = dev or (None if data.dev is None else data.dev.path)
    prepared = _prepared(train_path or data.train.path, dev, run.config, codec, listeners)
    mode: MatrixMode = "onednn" if before.matrix_mode == "onednn" else "default"
    now = current_environment(device, mode)
    changes = differences(before, now)
    if changes:
        _tell(listeners, f"last bits may differ from an uninterrupted run: {', '.join(changes)}")
        run.write_environment(now)
    inventory = _inventory(run.config, codec)
    weights = parameters.initialise(inventory, run.config.training.seed)
    with matrix_mode(mode):
        return _fit(run, prepared, weights, listeners, device, is_resumed=bool(run.states.steps()))


def _fit(
    run: Run,
    prepared: Prepared,
    weights: Mapping[str, NDArray[Any]],
    listeners: Sequence[Listener],
    device: torch.device,
    *,
    is_resumed: bool,
) -> Outcome:
    model = models.build(run.config.model, _sizes(prepared.codec), weights).to(device)
    settings = run.config.training
    dev = None
    if prepared.dev is not None:
        dev = DevSet(
            prepared.dev,
            settings,
            vocabulary_size=len(prepared.codec.target),
            device=device,
            max_length=longest_sequence(run.config.model.decoder),
        )
    with ExitStack() as stack:
        logs: list[Listener] = [stack.enter_context(JsonLinesLog(run.log_path))]
        if TensorBoard.is_available():
            logs.append(stack.enter_context(TensorBoard(run.path / "tensorboard")))
        trainer = Trainer(
            model,
            Epochs(prepared.train, settings),
            PairObjective(settings, device=device),
            settings,
            dev=dev,
            lines=prepared.train_pairs.lines,
            checkpoints=Checkpoints(run),
            listeners=[*logs, *listeners],
            device=device,
        )
        return trainer.fit(resume=is_resumed)


@dataclasses.dataclass(frozen=True)
class _Start:
    """What a new run starts from."""

    config: Config
    codec: Codec | None
    stored: Mapping[str, NDArray[Any]] | None

    @classmethod
    def fresh(cls, config: Config) -> _Start:
        return cls(config, None, None)

    @classmethod
    def of_run(cls, run: Run, config: Config | None) -> _Start:
        """Weights and vocabulary of a run; other settings may be new, the model's may not."""
        if config is not None and config.model != run.config.model:
            raise ConfigError(
                f"the model of {run.path} has other settings than config.model; start from it with its own"
            )
        codec = Codec.from_json(run.vocabulary())
        shapes = {parameter.name: parameter.shape for parameter in _inventory(run.config, codec)}
        return cls(config or run.config, codec, run.weights(shapes))

    def weights(self, codec: Codec) -> Mapping[str, NDArray[Any]]:
        if self.stored is not None:
            return self.stored
        return parameters.initialise(_inventory(self.config, codec), self.config.training.seed)


def _sizes(codec: Codec) -> Sizes:
    return Sizes(source=len(codec.source), features=codec.source.num_features, target=len(codec.target))


def _inventory(config: Config, codec: Codec) -> tuple[Parameter, ...]:
    return parameters.inventory(config.model, _sizes(codec))


def _prepared(
    train_path: FilePath, dev: FilePath | None, config: Config, codec: Codec | None, listeners: Sequence[Listener]
) -> Prepared:
    prepared = prepare(train_path, dev, config.data, seed=config.training.seed, codec=codec)
    for listener in listeners:
        listener(DataPrepared(0, lines=tuple(prepared.report.lines())))
    return prepared


def _digest(prepared: Prepared) -> DataDigest:
    def of_file(values: Mapping[str, Any]) -> FileDigest:
        path = str(Path(values["file"]).resolve())
        return FileDigest(path=path, sha256=values["sha256"], num_pairs=values["num_pairs"])

    digest = prepared.digest
    return DataDigest(
        train=of_file(digest["train"]),
        dev=None if digest["dev"] is None else of_file(digest["dev"]),
        dev_lines=tuple(digest["dev_lines"] or ()),
        longest_source=min(prepared.report.train.source.longest, prepared.report.train.source.limit),
    )


def _tell(listeners: Sequence[Listener], message: str) -> None:
    for listener in listeners:
        listener(Warned(0, message))
