"""This project beside what a person would take instead: the same work, in turns, ratios of medians.

    benchmarks/peers.sh && python benchmarks/bench.py [--rounds 5] [--only TEXT]     (`make bench` does both)

Every row starts its programs once, lets each warm up, then asks them for one repetition after the other, so that what
else the machine does falls on all of them alike. Decoders run at the best of a few batch sizes each. The first line
says what the machine can do: the rate of a float32 matrix product of 1024³, and the bandwidth of a large copy.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from unrolled.commands import settle_libraries

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / "build" / "peers"
BATCHES = (256, 1024)


class Worker:
    """A program that does its work once for every line that it is sent."""

    def __init__(self, command: Sequence[object], environment: Mapping[str, str]) -> None:
        self._child = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer("ready")

    def rate(self) -> float:
        """Units of work a second, of one repetition."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return float(self._answer())

    def _answer(self, expected: str | None = None) -> str:
        """The next line that is an answer; libraries may print others."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            found = line.strip()
            if found == expected or (expected is None and found.replace(".", "", 1).replace("e", "").isdigit()):
                return found
        raise SystemExit(f"{self._child.args}: ended early with {self._child.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.stdin.close()
        self._child.wait()


@dataclasses.dataclass(frozen=True)
class Program:
    """One side of a comparison: an environment, a script, and its arguments, `{batch}` one of several sizes."""

    name: str
    environment: str
    script: str
    arguments: tuple[object, ...]

    def start(self, batch: int) -> Worker:
        """A worker of it."""
        arguments = (batch if word == "{batch}" else word for word in self.arguments)
        python = PEERS / self.environment / "bin" / "python" if self.environment else sys.executable
        command = [python, HERE / "workers" / self.script, *arguments]
        return Worker(command, settings_of_a_peer() if self.environment else os.environ)

    def best_batch(self) -> int:
        """The batch size with the highest rate, one repetition each."""
        if "{batch}" not in self.arguments:
            return 0
        rates = {}
        for batch in BATCHES:
            with self.start(batch) as worker:
                rates[batch] = worker.rate()
        return max(rates, key=lambda batch: rates[batch])


@dataclasses.dataclass(frozen=True)
class Row:
    """A comparison: the work, what is counted, ours first, then the others."""

    work: str
    unit: str
    programs: tuple[Program, ...]


def settings_of_a_peer() -> dict[str, str]:
    """As many threads as ours, and nothing else that our commands set for themselves."""
    own = {"GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    return {name: value for name, value in os.environ.items() if name not in own}


def ours(model: str, beam: int) -> Program:
    """A decoder of ours."""
    return Program("unrolled", "", "decode_ours.py", ("torch", model, beam, "{batch}"))


ROWS = [
    *(
        Row(
            f"Transformer 4+4, 256/1024, {'greedy' if beam == 1 else f'beam {beam}'}, 8 symbols in and out",
            "words/s",
            (
                ours("transformer", beam),
                Program("transformers", "transformers", "decode_transformers.py", (beam, "{batch}")),
                Program("CTranslate2", "ctranslate2", "decode_ctranslate2.py", (beam, "{batch}", "float32")),
                Program("CTranslate2 int8", "ctranslate2", "decode_ctranslate2.py", (beam, "{batch}", "int8")),
            ),
        )
        for beam in (1, 5)
    ),
    *(
        Row(
            f"LSTM with attention 256/256, {'greedy' if beam == 1 else f'beam {beam}'}, 8 symbols in and out",
            "words/s",
            (
                ours("lstm", beam),
                Program("NumPy engine", "", "decode_ours.py", ("numpy", "lstm", beam, "{batch}")),
            ),
        )
        for beam in (1, 5)
    ),
    *(
        Row(
            f"training, {name}, CMUdict, batch 64, dropout on",
            "words/s",
            (
                Program("unrolled", "", "train.py", ("ours", name)),
                Program("plain PyTorch, same matrix mode", "", "train.py", ("plain", name)),
                Program("plain PyTorch", "", "train.py", ("plain-default", name)),
            ),
        )
        for name in ("lstm", "transformer")
    ),
]


def compare(row: Row, rounds: int) -> list[str]:
    """Lines of a table: median rate of each program, and ours over it."""
    batches = [program.best_batch() for program in row.programs]
    workers = [program.start(batch) for program, batch in zip(row.programs, batches, strict=True)]
    try:
        rates = [[worker.rate() for worker in workers] for _ in range(rounds)]
    finally:
        for worker in workers:
            worker.__exit__()
    medians = [statistics.median(column) for column in zip(*rates, strict=True)]
    lines = []
    for place, (program, batch) in enumerate(zip(row.programs, batches, strict=True)):
        ratios = [turn[0] / turn[place] for turn in rates]
        spread = f"{medians[0] / medians[place]:.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if place else ""
        at = f", batch {batch}" if batch else ""
        lines.append(f"| {row.work} | {program.name}{at} | {medians[place]:.0f} {row.unit} | {spread} |")
    return lines


def machine() -> str:
    """What the processor can do, measured."""
    import torch

    from unrolled.training import matrix_mode, probe_matrix_mode

    matrix = torch.randn(1024, 1024)
    large = torch.randn(1 << 26)
    with matrix_mode(probe_matrix_mode()):
        product = _seconds(lambda: matrix @ matrix, 20)
    copy = _seconds(lambda: large.clone(), 5)
    rate, bandwidth = 2 * 1024**3 / product / 1e9, 2 * large.nbytes / copy / 1e9
    return f"{torch.get_num_threads()} threads: matrix product {rate:.0f} GFLOP/s, copy {bandwidth:.0f} GB/s"


def _seconds(work, repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose description holds this text")
    options = parser.parse_args(arguments)
    print(machine())
    print("| work | program | median | ours over it (range) |\n|---|---|---|---|")
    for row in ROWS:
        if options.only in row.work:
            print("\n".join(compare(row, options.rounds)), flush=True)


if __name__ == "__main__":
    settle_libraries()
    main()
