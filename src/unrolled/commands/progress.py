"""What a person sees while a model trains: a live bar in a terminal, an occasional line elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Column

from unrolled.metrics.perplexity import bits_per_unit, perplexity
from unrolled.training.events import (
    DataPrepared,
    Evaluated,
    Event,
    Planned,
    StepSkipped,
    StepTaken,
    TrainingEnded,
    TrainingStarted,
    Warned,
)

SMOOTHING = 0.98  # share of the old value in the running means of loss and speed
PAUSE = 30.0  # seconds between two lines where there is no terminal


class TrainingProgress:
    """A listener of training that writes to a console (standard error by default).

    Use it as a context, so that the terminal is left in order however training ends.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TaskProgressColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True), markup=False),
            expand=True,
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=None, facts="")
        self._loss = RunningMean()
        self._speed = RunningMean()
        self._seconds = 0.0
        self._dev = ""
        self._last_line = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        match event:
            case StepTaken():
                self._show_step(event)
            case TrainingStarted():
                self._seconds = 0.0
                self._bar.update(self._task, total=event.total_steps, completed=event.step)
            case Planned():
                self._bar.update(self._task, total=event.total_steps)
            case Evaluated():
                self._dev = f"dev {short_value(event)}"
        text = describe(event)
        if text:
            self.console.print(text, markup=False, soft_wrap=True)

    def _show_step(self, event: StepTaken) -> None:
        elapsed = event.seconds - self._seconds
        if self._seconds and elapsed > 0:
            self._speed.add(event.num_tokens / elapsed)
        self._seconds = event.seconds
        self._loss.add(event.loss)
        facts = [f"epoch {event.epoch}", f"loss {self._loss.value:.3f}", self._dev]
        facts += [f"{self._speed.value:,.0f} tokens/s" if self._speed.value else ""]
        facts += [f"{clock(event.seconds_left)} left" if event.seconds_left is not None else ""]
        text = " · ".join(filter(None, facts))
        self._bar.update(self._task, completed=event.step, total=event.total_steps, facts=text)
        if not self.console.is_terminal and event.seconds - self._last_line >= PAUSE:
            self._last_line = event.seconds
            of_all = f" of {event.total_steps}" if event.total_steps else ""
            self.console.print(f"step {event.step}{of_all} · {text}", markup=False, soft_wrap=True)


class RunningMean:
    """An exponential mean that starts with its first value."""

    def __init__(self) -> None:
        self.value = 0.0
        self._weight = 0.0

    def add(self, value: float) -> None:
        """Take in one more value."""
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        self.value += (value - self.value) * (1 - SMOOTHING) / self._weight


def describe(event: Event) -> str:
    """One line for what is worth a line, else nothing."""
    match event:
        case DataPrepared():
            return "\n".join(event.lines)
        case TrainingStarted():
            return (
                f"{event.num_parameters:,} parameters, {event.num_pairs:,} examples, {event.steps_per_epoch:,} steps an"
                f" epoch; {event.device}, {event.threads} threads, matrix products: {event.matrix_mode}"
            )
        case Planned():
            now = "" if event.steps_before is None else f" now, {event.steps_before:,} before"
            return f"the time budget is {event.total_steps:,} steps of {1000 * event.seconds_per_step:.0f} ms{now}"
        case Evaluated():
            best = ", best so far" if event.is_best else ""
            which = " (averaged weights)" if event.weights == "average" else ""
            return f"step {event.step}, epoch {event.epoch}: dev {describe_value(event)}{which}{best}"
        case StepSkipped():
            where = f", first in {event.parameter}" if event.parameter else ""
            lines = ", ".join(map(str, event.lines[:5]))
            return f"step {event.step} skipped: {event.reason}{where}; lines {lines}; {event.total} so far"
        case Warned():
            return f"note: {event.message}"
        case TrainingEnded():
            return (
                f"training ended ({event.reason.replace('_', ' ')}) after {event.step:,} steps, {clock(event.seconds)}"
            )
    return ""


def describe_value(event: Evaluated) -> str:
    """Loss and metric of an evaluation."""
    loss = "no labels to score" if event.loss is None else f"loss {event.loss:.4f}"
    if event.loss is not None and event.num_characters:
        nats = event.loss * event.num_labels
        bits = bits_per_unit(nats, event.num_characters)
        loss += f" (perplexity {perplexity(nats, event.num_labels):.2f}, {bits:.3f} bits a character)"
    if event.metric == "loss" or event.value is None:
        return loss
    return f"{loss}, {event.metric.replace('_', ' ')} {100 * event.value:.2f} %"


def short_value(event: Evaluated) -> str:
    """What chooses the best weights, as short as it can be said."""
    if event.value is None:
        return "–"
    return f"{event.value:.3f}" if event.metric == "loss" else f"{100 * event.value:.1f} %"


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours too."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
