"""A recurrent layer forward and backward, 32 rows of 50 steps, 256 wide: layers.py ours|plain|plain-default CELL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch
from sizes import WIDTH
from timed import serve_rate
from torch import Tensor, nn

from unrolled import config
from unrolled.commands import keep_memory
from unrolled.commands.products import fast_products
from unrolled.models.recurrent import RecurrentLayers

ROWS, STEPS, PASSES = 32, 50, 40
PLAIN = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def our_layer(cell: str) -> Callable[[Tensor], Tensor]:
    """From inputs (B, T, E) to states (B, T, H)."""
    layers = RecurrentLayers(config.Cells.model_validate({"cell": cell, "hidden_size": WIDTH}), WIDTH)
    for weight in layers.parameters():
        nn.init.uniform_(weight, -(WIDTH**-0.5), WIDTH**-0.5)
    return lambda x: layers(x, None, None, layers.weights())[0]


def plain_layer(cell: str) -> Callable[[Tensor], Tensor]:
    """Build the same in plain PyTorch."""
    layer = PLAIN[cell](WIDTH, WIDTH, batch_first=True)
    return lambda x: layer(x)[0]


def main() -> None:
    """Serve."""
    who, cell = sys.argv[1:]
    if who == "ours":
        keep_memory()
    layer = our_layer(cell) if who == "ours" else plain_layer(cell)
    x = torch.randn(ROWS, STEPS, WIDTH, requires_grad=True)
    d_output = torch.randn(ROWS, STEPS, WIDTH)

    def passes() -> int:
        for _ in range(PASSES):
            layer(x).backward(d_output)
        return PASSES

    with nullcontext() if who == "plain-default" else fast_products():
        serve_rate(passes)


main()
