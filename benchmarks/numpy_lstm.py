"""Forward and backward of one LSTM layer: NumPy, `torch.nn.LSTM`, and a loop over `torch.nn.LSTMCell` with autograd.

Batch 32, 50 steps, float32, two threads unless OMP_NUM_THREADS says otherwise. All are timed in turn within one run, so
that whatever else the machine does meets all of them; the medians are printed, and the medians of the ratios.

    python benchmarks/numpy_lstm.py [--repeats 15] [--clock processor]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import torch

from unrolled.reference import LSTMCell, unroll_backward, unroll_forward

BATCH, STEPS = 32, 50
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
LIMITS = {128: 2.5, 256: 2.0, 512: 1.5}


def numpy_layer(size, x, d_h):
    cell = LSTMCell(size, size, dtype=np.float32)

    def run():
        _, _, cache = unroll_forward(cell, x, cell.zero_state(BATCH))
        unroll_backward(cell, d_h, None, cache)

    return run


def torch_layer(size, x, d_h):
    layer = torch.nn.LSTM(size, size, batch_first=True)
    inputs, d_output = torch.tensor(x, requires_grad=True), torch.tensor(d_h)

    def run():
        layer(inputs)[0].backward(d_output)

    return run


def torch_cell_loop(size, x, d_h):
    cell = torch.nn.LSTMCell(size, size)
    inputs, d_output = torch.tensor(x, requires_grad=True), torch.tensor(d_h)

    def run():
        state, outputs = None, []
        for step in inputs.unbind(1):
            state = cell(step, state)
            outputs.append(state[0])
        torch.stack(outputs, dim=1).backward(d_output)

    return run


def milliseconds(run, clock):
    begin = clock()
    run()
    return 1e3 * (clock() - begin)


def compare(size, repeats, clock):
    rng = np.random.default_rng(0)
    x, d_h = rng.normal(size=(2, BATCH, STEPS, size)).astype(np.float32)
    runs = [make(size, x, d_h) for make in (numpy_layer, torch_layer, torch_cell_loop)]
    for run in runs:
        run()
    times = [[milliseconds(run, clock) for run in runs] for _ in range(repeats)]
    ours, layer, loop = (statistics.median(column) for column in zip(*times, strict=True))
    slower = statistics.median(row[0] / row[1] for row in times)
    faster = statistics.median(row[2] / row[0] for row in times)
    print(
        f"{size:5d}  {ours:8.1f}  {layer:10.1f}  {loop:12.1f}  {slower:8.2f} (at most {LIMITS[size]:.1f})"
        f"  {faster:8.2f} (at least 1.5)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for a machine that is busy")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(" size  NumPy ms  nn.LSTM ms  cell loop ms  NumPy / nn.LSTM        cell loop / NumPy")
    for size in LIMITS:
        compare(size, arguments.repeats, CLOCKS[arguments.clock])


if __name__ == "__main__":
    main()
