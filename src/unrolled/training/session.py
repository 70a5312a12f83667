"""Data files and settings to a trained run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from unrolled import models, parameters, presets
from unrolled.config import Config, Text
from unrolled.errors import ConfigError
from unrolled.inference.engines import AnyCodec, codec_of, sizes_of
from unrolled.models.device import DeviceName, choose_device
from unrolled.models.matrix_products import MatrixMode, current_matrix_mode, matrix_mode
from unrolled.parameters import Parameter
from unrolled.runs import Environment, Run, check_free, locked
from unrolled.settings import resolve
from unrolled.text import DataFile
from unrolled.text.tasks import is_task, task_type
from unrolled.training.checkpoints import Checkpoints
from unrolled.training.environment import current_environment, differences
from unrolled.training.events import DataPrepared, Event, Listener, Warned
from unrolled.training.listeners import JsonLinesLog, TensorBoard
from unrolled.training.loop import Trainer
from unrolled.training.material import TOKENS, Material, gather
from unrolled.training.outcome import Outcome
from unrolled.training.processes import Processes, connected
from unrolled.training.text import is_streamed

__all__ = ["train"]

FilePath = str | Path


def train(
    train_path: DataFile | None = None,
    *,
    dev: DataFile | None = None,
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
    train_path : path, or two
        File of pairs, two parallel files (of sources and of targets), or `task:NAME` for the endless pairs of a task;
        may be left out with `resume`, which then takes what the run names.
    dev : path, or two, optional
        File, or two parallel ones, that chooses the best weights; without it distinct sources are held out.
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

    Notes
    -----
    Started by `torchrun`, all its processes train one model, and each call returns the same; see
    `unrolled.training.processes`. They share the folder of the run.

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
        If the run to resume or to start from is damaged, or another process is training in the folder.
    DivergenceError
        If gradients are not finite in several steps in a row, or `training.watch` sees that nothing can come of it.
    """
    with connected(choose_device(device)) as (processes, where), ExitStack() as held:
        here = _Here(where, processes, listeners if processes.is_main else (), held)
        if resume is None:
            return _begin(
                here, train_path, dev, config=config, preset=preset, out=out, start_from=start_from, overwrite=overwrite
            )
        if config is not None or preset is not None or out is not None or start_from is not None:
            raise ConfigError(
                "resume takes settings and folder from the run; leave out config, preset, out and start_from"
            )
        run = here.first(lambda: _opened(Path(resume), here), then=lambda: Run.open(resume))
        return _resume(run, train_path, dev, here)


def _opened(path: Path, here: _Here) -> Run:
    Run.open(path)  # nothing is made where there is no run
    here.held.enter_context(locked(path))
    return Run.open(path, for_writing=True)


@dataclasses.dataclass(frozen=True)
class _Here:
    """Where this process trains, with whom, who listens, and what is held until the end."""

    device: torch.device
    processes: Processes
    listeners: Sequence[Listener]
    held: ExitStack

    def first(self, main: Callable[[], Run], *, then: Callable[[], Run]) -> Run:
        """The run as the first process makes or mends it, and as the others find it afterwards."""
        if not self.processes.is_main:
            self.processes.wait()
            return then()
        run = main()
        self.processes.wait()
        return run

    def matrix_mode(self) -> MatrixMode:
        """The mode of the first process, for all: each may have measured another one to be faster."""
        (is_onednn,) = self.processes.of_main(current_matrix_mode() == "onednn")
        return "onednn" if is_onednn else "default"

    def environment(self, mode: MatrixMode) -> Environment:
        return current_environment(self.device, mode, processes=self.processes.size)

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)


def _begin(
    here: _Here,
    train_path: DataFile | None,
    dev: DataFile | None,
    *,
    config: Config | None,
    preset: str | None,
    out: FilePath | None,
    start_from: FilePath | None,
    overwrite: bool,
) -> Outcome:
    if train_path is None or out is None:
        raise ConfigError("training needs a file of pairs and a folder for the run, or a run to resume")
    if config is not None and preset is not None:
        raise ConfigError("settings come from config or from preset, not from both")
    if config is None and start_from is None:
        preset = preset or presets.of_task(train_path)
    if preset is not None:
        config = presets.get(preset)
    if is_task(train_path):
        base = Run.open(start_from).config if config is None and start_from is not None else config
        config = resolve(base, flags={"data.task.type": task_type(train_path)})
    if here.processes.is_main:
        check_free(Path(out), overwrite=overwrite)
    start = _Start.fresh(config or Config()) if start_from is None else _Start.of_run(Run.open(start_from), config)
    if isinstance(train_path, tuple):
        start = start.of_parallel_files()
    material = _gathered(train_path, dev, start.config, Path(out), start.codec, here)
    mode = here.matrix_mode()

    def create() -> Run:
        here.held.enter_context(locked(Path(out)))
        return Run.create(
            out,
            config=start.config,
            vocabulary=material.codec.to_json(),
            data=material.digest,
            environment=here.environment(mode),
            overwrite=overwrite,
        )

    run = here.first(create, then=lambda: Run.open(out))
    with matrix_mode(mode):
        return _fit(run, material, start.weights(material.codec), here, is_resumed=False)


def _resume(run: Run, train_path: DataFile | None, dev: DataFile | None, here: _Here) -> Outcome:
    data, before = run.data(), run.environment()
    if is_streamed(run.config) and max(before.processes, here.processes.size) > 1:
        raise ConfigError(
            f"{run.path}: the state that goes on through a text is saved for one process, got {before.processes} before"
            f" and {here.processes.size} now; resume what one process trained with one, or start a new run --from it"
        )
    data.train.check(train_path)
    if data.dev is not None:
        data.dev.check(dev)
    elif dev is not None:
        raise ConfigError(f"{run.path} was started without a dev file; leave {dev} out to resume it")
    codec = codec_of(run)
    dev = dev or (None if data.dev is None else data.dev.files)
    material = _gathered(train_path or data.train.files, dev, run.config, run.path, codec, here)
    data.compare(material.digest)
    mode: MatrixMode = "onednn" if before.matrix_mode == "onednn" else "default"
    now = here.environment(mode)
    changes = differences(before, now)
    if changes:
        here.tell(Warned(0, f"last bits may differ from an uninterrupted run: {', '.join(changes)}"))
        if here.processes.is_main:
            run.write_environment(now)
    inventory = _inventory(run.config, codec)
    weights = parameters.initialise(inventory, run.config.training.seed)
    with matrix_mode(mode):
        return _fit(run, material, weights, here, is_resumed=bool(run.states.steps()))


def _fit(
    run: Run,
    material: Material,
    weights: Mapping[str, NDArray[Any]],
    here: _Here,
    *,
    is_resumed: bool,
) -> Outcome:
    model = models.build(run.config.model, sizes_of(material.codec), weights).to(here.device)
    settings = run.config.training
    watch = [material.watch(model, here.device)] if settings.watch and material.watch is not None else []
    with ExitStack() as stack:
        logs: list[Listener] = []
        if here.processes.is_main:
            logs.append(stack.enter_context(JsonLinesLog(run.log_path)))
        if here.processes.is_main and TensorBoard.is_available():
            logs.append(stack.enter_context(TensorBoard(run.path / "tensorboard")))
        trainer = Trainer(
            model,
            material.steps,
            material.objective(here.device),
            settings,
            dev=material.dev(here.device),
            lines=material.lines,
            checkpoints=Checkpoints(run),
            listeners=[*logs, *here.listeners, *watch],
            device=here.device,
            processes=here.processes,
        )
        return trainer.fit(resume=is_resumed)


@dataclasses.dataclass(frozen=True)
class _Start:
    """What a new run starts from."""

    config: Config
    codec: AnyCodec | None
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
        codec = codec_of(run)
        shapes = {parameter.name: parameter.shape for parameter in _inventory(run.config, codec)}
        return cls(config or run.config, codec, run.weights(shapes))

    def of_parallel_files(self) -> _Start:
        """The same, but for how lines are read."""
        if isinstance(self.config.data, Text):
            return self  # refused where the files are read
        data = self.config.data.model_copy(update={"format": "parallel"})
        return dataclasses.replace(self, config=self.config.model_copy(update={"data": data}))

    def weights(self, codec: AnyCodec) -> Mapping[str, NDArray[Any]]:
        if self.stored is not None:
            return self.stored
        return parameters.initialise(_inventory(self.config, codec), self.config.training.seed)


def _inventory(config: Config, codec: AnyCodec) -> tuple[Parameter, ...]:
    return parameters.inventory(config.model, sizes_of(codec))


def _gathered(
    train_path: DataFile, dev: DataFile | None, config: Config, out: Path, codec: AnyCodec | None, here: _Here
) -> Material:
    material = gather(train_path, dev, config, folder=out.parent / TOKENS, codec=codec)
    here.tell(DataPrepared(0, lines=material.report))
    return material
