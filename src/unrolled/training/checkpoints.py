"""Between the loop and the run folder: what exact continuation needs, and the weights to predict with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unrolled import config
from unrolled.errors import CheckpointError
from unrolled.runs import Run, SavedState, check_tensors
from unrolled.training.device import random_state, set_random_state
from unrolled.training.selection import Selection, Weights
from unrolled.training.stepper import Stepper

__all__ = ["Checkpoints", "Progress"]


@dataclasses.dataclass
class Progress:
    """Where the loop is; with the weights, moments, random states and the selection all that it needs to go on."""

    step: int = 0
    """Optimiser steps so far, skipped ones included; it also gives the place within the epoch."""
    evaluated_step: int = 0
    """The last step whose dev evaluation is done."""
    total_steps: int | None = None
    """None while a time budget is still to be measured."""
    steps_per_evaluation: int = 1
    num_plans: int = 0
    """How often a time budget was turned into steps."""
    seconds_per_evaluation: float = 0.0
    """As the first plan measured it."""
    num_skipped: int = 0
    skipped_in_a_row: int = 0
    seconds: float = 0.0


class Checkpoints:
    """Saves and restores the loop's state in a run folder.

    Parameters
    ----------
    run : Run
        Opened for writing, or just created.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step_of_weights: int | None = None

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._run.path

    def save(self, progress: Progress, stepper: Stepper, selection: Selection, *, device: torch.device) -> None:
        """Commit a state, and store the best weights so far (before the first evaluation: the current ones)."""
        arrays: dict[str, Callable[[], Weights]] = {
            f"weights-{step}": partial(selection.snapshots.__getitem__, step) for step in selection.snapshots
        }
        arrays.setdefault(f"weights-{progress.step}", stepper.weights)
        arrays[f"training-{progress.step}"] = partial(_training_arrays, stepper, device)
        values = {"progress": dataclasses.asdict(progress), "selection": selection.to_json()}
        self._run.states.save(progress.step, values, arrays)
        best = selection.best_weights()
        step = progress.step if selection.best is None else selection.best.step
        if step != self._step_of_weights:
            self._run.write_weights(stepper.weights() if best is None else best)
            self._step_of_weights = step

    def restore(
        self, stepper: Stepper, settings: config.Training, *, device: torch.device
    ) -> tuple[Progress, Selection, tuple[str, ...]]:
        """Go back to the newest complete state; also says, a line each, why newer ones were passed over.

        Raises
        ------
        CheckpointError
            If there is no complete state, or it is of another model or version.
        """
        state = self._run.states.load()
        self._run.states.drop_after(state.step)
        weights, training = state.arrays[f"weights-{state.step}"], state.arrays[f"training-{state.step}"]
        for current, stored in ((stepper.weights(), weights), (stepper.moments(), _part(training, "moments"))):
            shapes = {name: array.shape for name, array in current.items()}
            check_tensors(stored, shapes, where=self._run.path / f"state of step {state.step}")
        stepper.load_weights(weights)
        stepper.load_moments(_part(training, "moments"))
        stepper.objective.load_state(_part(training, "objective"))
        set_random_state(_part(training, "random"), device)
        try:
            selection = Selection.from_json(settings, state.values["selection"], _snapshots(state))
            return Progress(**state.values["progress"]), selection, state.damage
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._run.path}: the state of step {state.step} was written by another version; start the run again"
                f" or resume it with that version\n{error!r}"
            ) from error

    def write_final(self, weights: Weights) -> None:
        """Store the weights that the run ends with."""
        self._run.write_weights(weights)


def _training_arrays(stepper: Stepper, device: torch.device) -> dict[str, Any]:
    parts = {"moments": stepper.moments(), "random": random_state(device), "objective": stepper.objective.state()}
    return {f"{kind}/{name}": array for kind, arrays in parts.items() for name, array in arrays.items()}


def _part(arrays: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{kind}/")}


def _snapshots(state: SavedState) -> dict[int, Weights]:
    """Weights of the steps that the selection still needs."""
    values = state.values["selection"]
    candidates = [*values["candidates"], *([values["best"]] if values["best"] else [])]
    return {step: state.arrays[f"weights-{step}"] for step, *_ in candidates}
