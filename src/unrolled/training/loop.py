"""The training loop: steps, dev evaluations, saves, and the ends that a run can come to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unrolled import config
from unrolled.errors import DivergenceError
from unrolled.models.matrix_products import current_matrix_mode
from unrolled.training.budget import Budget, Pace
from unrolled.training.checkpoints import Checkpoints, Progress
from unrolled.training.clock import Clock
from unrolled.training.device import seeded
from unrolled.training.epochs import Steps
from unrolled.training.evaluation import Dev, Score, SharedDev
from unrolled.training.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Listener,
    Planned,
    Reason,
    StepTaken,
    TrainingEnded,
    TrainingHalted,
    TrainingStarted,
    Warned,
)
from unrolled.training.interrupts import Interrupt, catch_interrupts
from unrolled.training.objective import Objective
from unrolled.training.outcome import Outcome
from unrolled.training.processes import Processes
from unrolled.training.reporter import Reporter
from unrolled.training.schedule import rate_factor
from unrolled.training.selection import Candidate, Selection
from unrolled.training.stepper import Stepper

__all__ = ["Trainer"]

_SECONDS_BETWEEN_SAVES = 15.0
_SAME_PLAN = 0.1  # of the steps left, up to which a later plan is the one before
_EVALUATION_SHARE = 0.05  # of a time budget, at most, where the interval is ours to choose


class Trainer:
    """Trains one model.

    Parameters
    ----------
    model : nn.Module
        Keeps the decoder contract; lies on `device`.
    steps : Steps
        What each step is made of.
    objective : Objective
        The loss of a batch.
    settings : config.Training
    dev : Dev, optional
        Without it the last weights are the result.
    lines : int array (N,), optional
        Line of the training file of each row of the data; for messages.
    checkpoints : Checkpoints, optional
        Without them nothing is saved.
    listeners : sequence of callables
        Each is called with every event, in order.
    device : torch.device, optional
        The CPU by default.
    processes : Processes, optional
        Those that share the rows of each batch. All take the same steps; the first one's dev set, clock and checkpoints
        count.

    Notes
    -----
    One seed, one number of threads and one machine give one result, bit for bit, whether or not the run was interrupted
    and resumed. Another number of threads or a GPU may change last bits; a time budget is another number of steps.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Steps,
        objective: Objective[Any],
        settings: config.Training,
        *,
        dev: Dev | None = None,
        lines: NDArray[Any] | None = None,
        checkpoints: Checkpoints | None = None,
        listeners: Sequence[Listener] = (),
        device: torch.device | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._processes = processes or Processes()
        self._dev = None if dev is None else SharedDev(dev, self._processes)
        self._lines = lines
        self._checkpoints = checkpoints
        self._listeners = listeners
        self._device = device or torch.device("cpu")
        self._steps = steps
        self._stepper = Stepper(model, objective, settings.optimizer, self._processes)
        self._selection = Selection(settings)
        self._progress = Progress(
            total_steps=self._limit(), steps_per_evaluation=settings.evaluate_every or self._steps.steps_per_epoch
        )
        self._reporter = Reporter(self._emit, self._progress, lines)
        self._budget = None if settings.minutes is None else Budget(60.0 * settings.minutes)
        self._clock = Clock()
        self._interrupt = Interrupt()
        self._session_start = (0, 0.0)  # step and seconds
        self._saved: Progress | None = None  # as it was at the last save, without its seconds
        self._saved_at = -math.inf  # seconds

    def fit(self, *, resume: bool = False) -> Outcome:
        """Train to the end that the settings name; the model is left with the chosen weights.

        Parameters
        ----------
        resume : bool
            Go on from the newest complete state of the checkpoints.

        Returns
        -------
        Outcome
            Also after a first SIGINT or SIGTERM: the step is finished and saved, and the model has its last weights.

        Raises
        ------
        DivergenceError
            If gradients are not finite in several steps in a row, or a listener says that going on is hopeless. What
            was reached is saved, so that it can be looked at.
        CheckpointError
            If there is nothing to resume from.
        """
        with catch_interrupts() as self._interrupt, seeded(self._settings.seed, self._device):
            damage = self._restore() if resume else ()
            self._clock = Clock(before=self._progress.seconds)
            self._session_start = (self._progress.step, self._clock.seconds)
            self._emit(self._started())
            for line in damage:
                self._warn(f"a damaged state was passed over, training goes on from the one before: {line}")
            try:
                return self._end(self._run())
            except DivergenceError as error:
                self._halt(error)
                raise

    def _run(self) -> Reason:
        while True:
            if self._evaluation_is_due():
                self._evaluate()
            reason = self._reason_to_end()
            if reason is not None:
                return reason
            self._step()
            if self._settings.save_every is not None and self._progress.step % self._settings.save_every == 0:
                self._save()

    def _evaluation_is_due(self) -> bool:
        """While a time budget is still measured, the interval is unknown unless it was set."""
        progress = self._progress
        is_known = self._settings.evaluate_every is not None or self._budget is None or progress.num_plans > 0
        return (
            is_known and progress.step > progress.evaluated_step and progress.step % progress.steps_per_evaluation == 0
        )

    def _reason_to_end(self) -> Reason | None:
        signal, is_late = self._processes.largest(self._interrupt.signal or 0, self._is_late())
        if signal:
            self._interrupt.signal = int(signal)
            return "interrupted"
        if self._progress.step == self._progress.total_steps:
            return "completed"
        if self._selection.is_exhausted:
            return "patience"
        if is_late:
            self._warn("the machine became slower than measured: the time budget is over before the last step")
            return "over_budget"
        return None

    def _is_late(self) -> bool:
        return self._budget is not None and self._budget.is_exceeded(self._clock.seconds)

    def _end(self, reason: Reason) -> Outcome:
        self._reporter.flush()
        if reason != "interrupted" and self._progress.step > self._progress.evaluated_step:
            self._evaluate()
            reason = "interrupted" if self._progress.step > self._progress.evaluated_step else reason
        self._save()
        best = self._selection.best
        value = self._choose() if reason != "interrupted" else None if best is None else best.value
        outcome = Outcome(
            reason=reason,
            step=self._progress.step,
            best_step=None if best is None else best.step,
            best_value=value,
            seconds=self._clock.seconds,
            path=None if self._checkpoints is None else self._checkpoints.path,
            signal=self._interrupt.signal if reason == "interrupted" else None,
        )
        self._emit(TrainingEnded(outcome.step, reason, outcome.best_step, outcome.best_value, outcome.seconds))
        return outcome

    def _halt(self, error: DivergenceError) -> None:
        self._reporter.drop()
        self._emit(TrainingHalted(self._progress.step, error.fault, str(error)))
        self._save()

    # --- steps -------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self._progress.step += 1
        step = self._progress.step
        batches = self._steps.batches_of(step)
        num_tokens = sum(batch.num_tokens for batch in batches)
        if self._processes.size > 1:
            self._draw_apart(step)
        if any(batch.num_labels for batch in batches):
            factor = rate_factor(self._settings.schedule, step, self._progress.total_steps)
            launched = self._stepper.launch(batches, factor, step=step)
            num_labels = sum(batch.num_labels for batch in batches)
            self._reporter.add(launched, batches, self._step_taken(factor, num_labels, num_tokens))
        else:
            self._reporter.skip_without_label(step, batches)
        if self._budget is not None:
            self._plan(self._budget, num_tokens)

    def _draw_apart(self, step: int) -> None:
        """Random numbers of this process and step alone: processes must differ, and only one of them is saved."""
        entropy = np.random.SeedSequence([self._settings.seed, step, self._processes.rank])
        torch.manual_seed(int(entropy.generate_state(1)[0]))

    def _step_taken(self, factor: float, num_labels: int, num_tokens: int) -> StepTaken:
        """The event of the present step; the reporter puts in what has to be waited for."""
        return StepTaken(
            self._progress.step,
            total_steps=self._progress.total_steps,
            epoch=self._steps.epoch_of(self._progress.step),
            loss=math.nan,
            gradient_norm=math.nan,
            learning_rate=self._stepper.learning_rate(factor),
            num_labels=num_labels,
            num_tokens=num_tokens,
            seconds=self._clock.seconds,
            seconds_left=self._seconds_left(),
        )

    def _seconds_left(self) -> float | None:
        if self._progress.total_steps is None:
            return None if self._budget is None else max(0.0, self._budget.seconds - self._clock.seconds)
        first, start = self._session_start
        pace = (self._clock.seconds - start) / (self._progress.step - first)
        return pace * (self._progress.total_steps - self._progress.step)

    # --- how long ----------------------------------------------------------------------------------------------------

    def _limit(self) -> int | None:
        """The least of the limits in steps; none if time alone is limited."""
        epochs, steps = self._settings.max_epochs, self._settings.max_steps
        limits = [steps, None if epochs is None else epochs * self._steps.steps_per_epoch]
        return min((limit for limit in limits if limit is not None), default=None)

    def _plan(self, budget: Budget, num_tokens: int) -> None:
        """Turn the time budget into steps as soon as enough of them were measured, and look at that again later."""
        progress, clock = self._progress, self._clock
        if budget.is_settled(progress.num_plans) or progress.step == progress.total_steps:
            return
        budget.observe(num_tokens, clock.stepping_seconds)
        is_due = budget.is_plan_due(progress.num_plans, clock.seconds) and budget.is_measured(clock.stepping_seconds)
        if not self._processes.largest(is_due)[0]:
            return
        per_token = budget.seconds_per_token(clock.stepping_seconds)
        if progress.num_plans == 0:
            start = clock.seconds
            self._evaluate()
            self._save()
            if self._processes.largest(bool(self._interrupt))[0]:
                return
            progress.seconds_per_evaluation = clock.seconds - start
        self._adopt(budget, Pace(*self._processes.of_main(per_token, progress.seconds_per_evaluation)))
        progress.num_plans += 1
        budget.restart()

    def _adopt(self, budget: Budget, pace: Pace) -> None:
        """Set the number of steps that fit; a later plan that hardly differs changes nothing."""
        per_step = pace.seconds_per_token * self._steps.tokens_per_step
        progress, before, limit = self._progress, self._progress.total_steps, self._limit()
        if self._settings.evaluate_every is None and progress.num_plans == 0:
            share = pace.seconds_per_evaluation / (_EVALUATION_SHARE * per_step * self._steps.steps_per_epoch)
            progress.steps_per_evaluation = max(1, math.ceil(share)) * self._steps.steps_per_epoch
        fitting = progress.step + budget.steps_that_fit(
            pace,
            seconds=self._processes.of_main(self._clock.seconds)[0],
            tokens_per_step=self._steps.tokens_per_step,
            steps_per_evaluation=progress.steps_per_evaluation,
        )
        total = fitting if limit is None else min(fitting, limit)
        earlier = before if progress.num_plans > 0 else None
        if earlier is not None and abs(total - earlier) <= _SAME_PLAN * (earlier - progress.step):
            return
        progress.total_steps = total
        self._emit(Planned(progress.step, total, per_step, pace.seconds_per_evaluation, earlier))

    # --- evaluations and saves ---------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Score the dev set, unless interrupted meanwhile; then it is done when training goes on."""
        self._reporter.flush()
        if self._dev is not None:
            start = self._clock.seconds
            with self._clock.aside():
                score = self._dev.score(self._model, should_stop=lambda: bool(self._interrupt))
            if score is None:
                return
            is_best = self._selection.add(self._candidate(score), self._stepper.weights())
            self._emit(self._evaluated(score, is_best=is_best, seconds=self._clock.seconds - start))
            if score.num_labels == 0:
                self._warn("the dev set has no labels to score, so it cannot choose the best weights")
        self._progress.evaluated_step = self._progress.step
        if self._settings.save_every is None and self._clock.seconds - self._saved_at > _SECONDS_BETWEEN_SAVES:
            self._save()

    def _candidate(self, score: Score) -> Candidate:
        """An evaluation of the present step; one without labels has no finite value."""
        value, loss = (math.nan if number is None else number for number in (score.value, score.loss))
        return Candidate(self._progress.step, value=value, loss=loss)

    def _evaluated(self, score: Score, *, is_best: bool, seconds: float, is_average: bool = False) -> Evaluated:
        return Evaluated(
            self._progress.step,
            epoch=self._steps.epoch_of(self._progress.step),
            loss=score.loss,
            metric=self._settings.dev_metric,
            value=score.value,
            is_best=is_best,
            num_labels=score.num_labels,
            seconds=seconds,
            weights="average" if is_average else "current",
            num_characters=score.num_characters,
        )

    def _save(self) -> None:
        """Commit the present state, unless that was done already."""
        self._reporter.flush()
        present = dataclasses.replace(self._progress, seconds=0.0)
        if self._checkpoints is None or present == self._saved or not self._processes.is_main:
            return
        start = self._clock.seconds
        self._progress.seconds = start
        with self._clock.aside():
            self._checkpoints.save(self._progress, self._stepper, self._selection, device=self._device)
        self._saved, self._saved_at = present, self._clock.seconds
        self._emit(CheckpointSaved(self._progress.step, str(self._checkpoints.path), self._saved_at - start))

    def _restore(self) -> tuple[str, ...]:
        assert self._checkpoints is not None, "resuming needs checkpoints"
        self._progress, self._selection, damage = self._checkpoints.restore(
            self._stepper, self._settings, device=self._device
        )
        self._reporter = Reporter(self._emit, self._progress, self._lines)
        return damage

    def _choose(self) -> float | None:
        """Put the weights in that the run ends with, and store them; their dev value."""
        best, averaged = self._selection.best, self._selection.averaged()
        weights = self._selection.best_weights()
        if best is not None and averaged is not None and self._dev is not None:
            start = self._clock.seconds
            self._stepper.load_weights(averaged)
            score = self._dev.score(self._model)
            assert score is not None, "nothing asked it to stop"
            candidate = self._candidate(score)
            is_better = (candidate.value, candidate.loss) <= (best.value, best.loss)
            self._emit(self._evaluated(score, is_best=is_better, seconds=self._clock.seconds - start, is_average=True))
            weights, best = (averaged, candidate) if is_better else (weights, best)
        if weights is not None:
            self._stepper.load_weights(weights)
        if self._checkpoints is not None and self._processes.is_main:
            self._checkpoints.write_final(self._stepper.weights())
        return None if best is None else best.value

    # --- events ------------------------------------------------------------------------------------------------------

    def _started(self) -> TrainingStarted:
        return TrainingStarted(
            self._progress.step,
            total_steps=self._progress.total_steps,
            steps_per_epoch=self._steps.steps_per_epoch,
            num_parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            num_pairs=self._steps.num_examples,
            device=str(self._device),
            threads=torch.get_num_threads(),
            matrix_mode=current_matrix_mode(),
        )

    def _emit(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _warn(self, message: str) -> None:
        self._emit(Warned(self._progress.step, message))
