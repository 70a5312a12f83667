"""Peak memory of a self-attention layer, forward and backward, in KiB per symbol: attention.py LENGTH.

The layer and how it is measured stand in `long_attention.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from timed import serve

SCRIPT = Path(__file__).resolve().parent.parent / "long_attention.py"


def measure(length: int) -> float:
    """In a process of its own."""
    command = [sys.executable, str(SCRIPT), "--one", str(length), "0"]
    peak, _ = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(peak) / 1024 / length


serve(lambda: measure(int(sys.argv[1])))
