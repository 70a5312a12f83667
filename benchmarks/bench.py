"""This project beside what a person would take instead: the same work, in turns, ratios of medians.

    benchmarks/peers.sh && python benchmarks/bench.py [--rounds 5] [--only TEXT]     (`make bench` does both)

Every row starts its programs once, lets each warm up, then asks them for one repetition after the other, so that what
else the machine does falls on all of them alike. Decoders of others run at the best of a few batch sizes each. What the
programs read, and the models that decode words, are made once under build/bench. The first line says what the machine
can do: the rate of a float32 matrix product of 1024³, and the bandwidth of a large copy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from material import write_material
from rows import ROWS
from turns import Row, compare

from unrolled.commands import settle_libraries


def machine() -> str:
    """What the processor can do, measured."""
    import torch

    from unrolled.commands.products import fast_products

    matrix = torch.randn(1024, 1024)
    large = torch.randn(1 << 26)
    with fast_products():
        product = _seconds(lambda: matrix @ matrix, 20)
    copy = _seconds(large.clone, 5)
    rate, bandwidth = 2 * 1024**3 / product / 1e9, 2 * large.nbytes / copy / 1e9
    return f"{torch.get_num_threads()} threads: matrix product {rate:.0f} GFLOP/s, copy {bandwidth:.0f} GB/s"


def _seconds(work: Callable[[], object], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def name_absent(rows: Sequence[Row]) -> None:
    """Say which programs are not installed."""
    absent = {program.environment: None for row in rows for program in row.programs if not program.is_installed}
    if absent:
        print(f"left out, not installed: {', '.join(absent)}; see benchmarks/peers.sh\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose description holds this text")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if options.only in row.work]
    write_material()
    print(machine())
    name_absent(rows)
    print("| work | program | median | ours (first) is better by (range) |\n|---|---|---|---|")
    for row in rows:
        print("\n".join(compare(row, options.rounds)), flush=True)


if __name__ == "__main__":
    settle_libraries()
    main()
