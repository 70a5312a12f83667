"""Trainings one after another or some at once, each a process of its own; what is done is never done again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from unrolled.errors import CheckpointError, ConfigError, DivergenceError, UnrolledError
from unrolled.runs import write_atomic
from unrolled.sweeps.plan import Trial

__all__ = ["Result", "run_trials"]

PAUSE = 0.1  # seconds between two looks at the processes
RESULTS = "results.json"
TRAIN = (sys.executable, "-m", "unrolled", "train")
INTERRUPTED = (130, 143, -signal.SIGINT, -signal.SIGTERM)


@dataclass(frozen=True)
class Result:
    """What a training came to.

    Attributes
    ----------
    value : float or None
        Best dev value; none where training diverged or had no dev set.
    seconds : float
        Of training.
    end : str
        `completed`, `patience`, `over_budget`, or what went wrong.
    """

    value: float | None
    seconds: float
    end: str


def run_trials(
    trials: Sequence[Trial], folder: Path, *, num_at_once: int = 1, on_result: Callable[[Trial, Result], None]
) -> dict[str, Result]:
    """Train what is not trained yet; results by the names of trials.

    `folder` holds `results.json`, written whole after every training, `runs/NAME` and `logs/NAME.log`. A training that
    was interrupted is resumed. One that diverges is a result; any other error ends the sweep.

    Parameters
    ----------
    trials : sequence of Trial
    folder : Path
        Made if it is not there.
    num_at_once : int
        Trainings at the same time; the processor's cores are shared out among them.
    on_result : callable
        Called after each training.

    Raises
    ------
    ConfigError, CheckpointError, UnrolledError
        If a training fails, with the line in which it says why.
    KeyboardInterrupt
        After an interruption, when all trainings have saved their state.
    """
    for name in ("runs", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    results = _read(folder / RESULTS)
    waiting = [trial for trial in trials if trial.name not in results]
    with closing(_finished(waiting, folder, num_at_once)) as finished:
        for trial, result in finished:
            results[trial.name] = result
            content = {name: asdict(found) for name, found in results.items()}
            write_atomic(folder / RESULTS, json.dumps(content, indent=1).encode())
            on_result(trial, result)
    return {trial.name: results[trial.name] for trial in trials}


def _read(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    try:
        return {name: Result(**values) for name, values in json.loads(path.read_bytes()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); delete it, and finished runs are read again") from None


def _finished(trials: Sequence[Trial], folder: Path, num_at_once: int) -> Generator[tuple[Trial, Result], None, None]:
    """Each training as it ends; whatever happens, no process is left behind."""
    waiting = list(trials)
    running: dict[str, tuple[Trial, subprocess.Popen[bytes]]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_at_once:
                trial = waiting.pop(0)
                done = _result_of(folder / "runs" / trial.name)
                if done is not None:
                    yield trial, done
                else:
                    running[trial.name] = trial, _start(trial, folder, num_at_once)
            for name, (trial, process) in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[name]
                    yield trial, _result(trial, folder, code)
            time.sleep(PAUSE)
    finally:
        for _, process in running.values():
            process.send_signal(signal.SIGINT)  # save and leave
        for _, process in running.values():
            process.wait()


def _start(trial: Trial, folder: Path, num_at_once: int) -> subprocess.Popen[bytes]:
    path = folder / "runs" / trial.name
    if (path / "manifest.json").exists():
        arguments = ["--resume", str(path)]
    else:
        shutil.rmtree(path, ignore_errors=True)  # killed while it was made: there is nothing in it
        arguments = [*trial.arguments, "--out", str(path)]
    environment = dict(os.environ)
    if num_at_once > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_at_once)))
    with (folder / "logs" / f"{trial.name}.log").open("ab") as log:
        return subprocess.Popen(
            [*TRAIN, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C reaches it once, by us
        )


def _result(trial: Trial, folder: Path, code: int) -> Result:
    if code == 0:
        result = _result_of(folder / "runs" / trial.name)
        assert result is not None
        return result
    if code in INTERRUPTED:
        raise KeyboardInterrupt
    log = folder / "logs" / f"{trial.name}.log"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    message = lines[-1].removeprefix("unrolled: ") if lines else "it said nothing"
    if code == DivergenceError.exit_code:
        return Result(None, 0.0, message)
    kinds = {ConfigError.exit_code: ConfigError, CheckpointError.exit_code: CheckpointError}
    raise kinds.get(code, UnrolledError)(f"{trial}: training ended with exit code {code}: {message} (see {log})")


def _result_of(path: Path) -> Result | None:
    """The result of a run that has come to its end."""
    log = path / "metrics.jsonl"
    if not log.exists():
        return None
    last = {}
    for line in log.read_bytes().splitlines():
        try:
            last = json.loads(line)
        except ValueError:  # cut off by a kill
            return None
    if last.get("event") != "TrainingEnded" or last["reason"] == "interrupted":
        return None
    return Result(last["best_value"], last["seconds"], last["reason"])
