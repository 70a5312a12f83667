"""Greedy decoding (and a beam) of 1,000 words by both engines, with the weights of a trained run.

Both decode in turn within one run, so that whatever else the machine does meets both; the medians are printed, and the
median of the ratios.

    python benchmarks/numpy_decoding.py RUN WORDS [--count 1000] [--beam 1] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch

import unrolled
from unrolled.text import parse_input, read_lines

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def seconds(model, asked, beam, clock):
    begin = clock()
    model.search(*asked, beam=beam)
    return clock() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("words")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for a machine that is busy")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    models = [unrolled.load(arguments.run, engine=engine) for engine in ("numpy", "torch")]
    lines = list(read_lines(arguments.words))[: arguments.count]
    words, features = zip(*(parse_input(line, models[0].config.data) for line in lines), strict=True)
    asked = (words, None if models[0].codec.source.features is None else features)
    clock = CLOCKS[arguments.clock]
    for model in models:
        model.search(*asked, beam=arguments.beam)
    times = [[seconds(model, asked, arguments.beam, clock) for model in models] for _ in range(arguments.repeats)]
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(row[0] / row[1] for row in times)
    print(f"{len(words)} words, beam {arguments.beam}: NumPy {ours:.2f} s, PyTorch {theirs:.2f} s; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
