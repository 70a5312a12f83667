"""Peak memory and time of one self-attention layer over long inputs, forward and backward, full and with a window.

    python benchmarks/long_attention.py [--lengths 2048 4096 16384] [--window 256] [--engine torch]

8 heads of 64, batch 1, float32, causal. Each length runs in a process of its own; memory is the process's peak above
what it held with its inputs in place. A layer that makes no T × T matrix grows in proportion to T: the last column
divides the peak by what the first length predicts. Leaves with 1 where any of these is above 1.2.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HEADS, HEAD_DIM = 8, 64
LIMIT = 1.2


def torch_layer(length: int, window: int | None) -> Callable[[], None]:
    """One pass of the PyTorch engine's layer."""
    import torch

    from unrolled.models.multihead import SelfAttention
    from unrolled.models.sight import sight

    torch.manual_seed(0)
    layer = SelfAttention(HEADS * HEAD_DIM, HEADS)
    x = torch.randn(1, length, HEADS * HEAD_DIM, requires_grad=True)

    def run() -> None:
        seen = sight(length, length, None, is_causal=True, window=window, device=x.device)
        context = seen.attend(*layer.project(x))
        layer.out(context.transpose(1, 2).flatten(2)).square().mean().backward()

    return run


def numpy_layer(length: int, window: int | None) -> Callable[[], None]:
    """One pass of the NumPy engine's layer."""
    from unrolled import config
    from unrolled.reference.attention import Visible
    from unrolled.reference.multihead import SelfAttention

    rng = np.random.default_rng(0)
    D = HEADS * HEAD_DIM
    shapes = {"qkv.weight": (3 * D, D), "qkv.bias": (3 * D,), "out.weight": (D, D), "out.bias": (D,)}
    weights = {name: rng.normal(0.0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
    layer = SelfAttention(config.Transformer(d_model=D, num_heads=HEADS), weights)
    x = rng.normal(size=(1, length, D)).astype(np.float32)
    positions = np.arange(length)[None]

    def run() -> None:
        y, cache = layer.forward(x, positions, Visible(is_causal=True, window=window))
        layer.backward(y / y.size, cache)

    return run


ENGINES = {"torch": torch_layer, "numpy": numpy_layer}


def status(field: str) -> int:
    """Bytes of a field of this process's memory, from Linux."""
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measure(engine: str, length: int, window: int | None) -> tuple[int, float]:
    """Peak memory of one pass in bytes above the start, and its seconds; once a process."""
    ENGINES[engine](64, window)()  # loads libraries and their buffers
    run = ENGINES[engine](length, window)
    before, begin = status("VmRSS"), time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak so far
    run()
    return status("VmHWM") - before, time.perf_counter() - begin


def main() -> int:
    """Measure each length, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--engine", choices=ENGINES, default="torch")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)  # length and window of a child process
    options = parser.parse_args()
    if options.one:
        print(*measure(options.engine, options.one[0], options.one[1] or None))
        return 0
    worst = 0.0
    print(f"{'window':>8} {'length':>8} {'MiB':>8} {'seconds':>8} {'of linear':>10}")
    for window in (0, options.window):
        first = None
        for length in options.lengths:
            command = [sys.executable, __file__, "--engine", options.engine, "--one", str(length), str(window)]
            peak, seconds = map(
                float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            )
            first = first or peak / length
            worst = max(worst, peak / length / first)
            print(
                f"{window or 'none':>8} {length:>8} {peak / 2**20:>8.1f} {seconds:>8.2f} {peak / length / first:>10.3f}"
            )
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
