"""Training with one or several processes, two threads in all: processes.py PROCESSES.

Counted are the symbols of all steps but the first few over their seconds, as the run's own log tells them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from files import DEV, TRAIN
from ours import DATA, MODELS
from sizes import BATCH
from timed import serve

from unrolled.config import Config, Training
from unrolled.settings import to_toml

THREADS, STEPS, WARM_UP = 2, 60, 20


def measure(processes: int) -> float:
    """Symbols a second of a training run."""
    training = Training(max_steps=STEPS, max_batch_size=BATCH, batch_tokens=8192)
    launcher = (
        [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    )
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS // processes)}
    with TemporaryDirectory() as folder:
        settings, run = Path(folder, "run.toml"), Path(folder, "run")
        settings.write_text(to_toml(Config(data=DATA, model=MODELS["lstm"], training=training)), encoding="utf-8")
        command = [sys.executable, *launcher, "-m", "unrolled", "train", TRAIN, "--dev", DEV]
        subprocess.run([*command, "--config", settings, "--out", run], check=True, capture_output=True, env=environment)
        return pace(run / "metrics.jsonl")


def pace(log: Path) -> float:
    """Symbols a second after the warm-up."""
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    first, *steps = [event for event in events if event["event"] == "StepTaken" and event["step"] >= WARM_UP]
    return sum(step["num_tokens"] for step in steps) / (steps[-1]["seconds"] - first["seconds"])


serve(lambda: measure(int(sys.argv[1])))
