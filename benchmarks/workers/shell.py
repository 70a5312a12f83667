"""One word from the shell, from the start of the interpreter to its end, in seconds: shell.py torch|numpy."""

from __future__ import annotations

import subprocess
import sys
import time

from our_runs import trained
from timed import serve


def main() -> None:
    """Serve."""
    command = [sys.executable, "-m", "unrolled", "predict", str(trained("tiny")), "--engine", sys.argv[1]]

    def measure() -> float:
        start = time.perf_counter()
        subprocess.run(command, input="word\n", text=True, check=True, capture_output=True)
        return time.perf_counter() - start

    measure()
    serve(measure)


main()
