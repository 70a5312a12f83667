"""A million pairs read, checked and tokenised by `unrolled train --dry-run`, start included: data.py seconds|GB."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from files import MANY
from timed import serve

COMMAND = [sys.executable, "-m", "unrolled", "train", str(MANY), "data.target.units=space", "--dry-run"]


def measure() -> dict[str, float]:
    """Seconds of the process, and its greatest resident memory."""
    start = time.perf_counter()
    child = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{child.args}: ended with {status}")
    return {"seconds": time.perf_counter() - start, "GB": 1024 * used.ru_maxrss / 1e9}


serve(lambda: measure()[sys.argv[1]])
