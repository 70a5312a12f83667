"""Time and memory of layers against the length of the sequence, with fitted exponents."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unrolled import models, parameters
from unrolled.config import (
    ConvolutionEncoder,
    Encoder,
    RecurrentDecoder,
    RecurrentEncoder,
    Seq2Seq,
    TransformerEncoder,
)
from unrolled.figures import Curve, Panel, series
from unrolled.parameters import Sizes
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

D, SYMBOLS, REPEATS, WINDOW = 32, 64, 3, 32
FIT_FROM = 4 * D
"""Shorter sequences cost mostly what does not depend on their length."""
CAPTION = (
    "One encoder layer of width 32, forward and backward, one sequence. Left: CPU time. Right: what the"
    " forward pass keeps for the backward pass; attention computes its weights in tiles and keeps no T × T matrix."
    " Slopes are the exponents of the table."
)


@dataclass(frozen=True)
class Layer:
    """A layer to measure, with the exponents of T that theory gives for its work and for its memory."""

    encoder: Encoder
    work: float
    memory: float


def layers() -> dict[str, Layer]:
    """All that are compared; equal widths, one layer each."""
    attention = {"d_model": D, "d_ff": 4 * D, "num_layers": 1, "num_heads": 4, "dropout": 0.0}
    recurrent = RecurrentEncoder(embedding_dim=D, hidden_size=D, is_bidirectional=False, dropout=0.0)
    convolution = ConvolutionEncoder(channels=D, num_layers=1, dropout=0.0)
    return {
        "recurrent (LSTM)": Layer(recurrent, 1, 1),
        "convolution": Layer(convolution, 1, 1),
        "attention": Layer(TransformerEncoder.model_validate(attention), 2, 1),
        f"attention, window {WINDOW}": Layer(TransformerEncoder.model_validate({**attention, "window": WINDOW}), 1, 1),
    }


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Time and kept memory for lengths that double, and the slopes of their logarithms."""
    lengths = pick(size, tiny=[32, 64, 128], default=[2**n for n in range(6, 13)], full=[2**n for n in range(6, 14)])
    found = layers()
    rows, seconds, kept, fitted = [], {}, {}, {}
    for name, layer in found.items():
        tell(name)
        times = [[_seconds(layer.encoder, T) for _ in range(REPEATS)] for T in lengths]
        bytes_kept = [_kept_bytes(layer.encoder, T) for T in lengths]
        seconds[name] = curve(lengths, [Interval.of(one) for one in times])
        kept[name] = Curve(lengths, np.array(bytes_kept) / 2**20)
        fitted[name] = _slope(lengths, [min(one) for one in times]), _slope(lengths, bytes_kept)
        rows.append(
            (name, fitted[name][0], layer.work, fitted[name][1], layer.memory, min(times[-1]), bytes_kept[-1] / 2**20)
        )
    panels = [
        Panel(seconds, "length T", "CPU seconds", log="xy"),
        Panel(kept, "length T", "kept for the backward pass (MiB)", log="xy"),
    ]
    columns = (
        "layer",
        "time ~ T^",
        "theory",
        "memory ~ T^",
        "theory",
        f"CPU s at {lengths[-1]}",
        f"MiB at {lengths[-1]}",
    )
    is_near = {name: abs(fitted[name][0] - layer.work) < 0.35 for name, layer in found.items()}
    held = all(is_near.values()) or (None if any(is_near.values()) else False)
    slopes = ", ".join(f"{name} {slope:.2f}" for name, (slope, _) in fitted.items())
    verdict = f"exponents of time above T = {FIT_FROM}: {slopes}"
    return Result(columns, tuple(rows), series(panels, CAPTION), held, verdict)


def _seconds(encoder: Encoder, length: int) -> float:
    """CPU time of one forward and backward pass, after one that warms up; other programs do not count."""
    model, source = _built(encoder), _tokens(length)
    _loss(model, source).backward()
    start = time.process_time()
    _loss(model, source).backward()
    return time.process_time() - start


def _kept_bytes(encoder: Encoder, length: int) -> int:
    """Size of all distinct tensors that the forward pass keeps for the backward pass, the weights excepted."""
    model = _built(encoder)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            alive.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _loss(model, _tokens(length))
    return sum(sizes.values())


def _built(encoder: Encoder) -> models.Seq2Seq:
    settings = Seq2Seq(encoder=encoder, decoder=RecurrentDecoder(embedding_dim=4, hidden_size=4))
    sizes = Sizes(SYMBOLS, 0, SYMBOLS)
    model = models.build(settings, sizes, parameters.initialise(parameters.inventory(settings, sizes), 0))
    assert isinstance(model, models.Seq2Seq)
    return model


def _tokens(length: int) -> Tensor:
    return 4 + torch.arange(length)[None] % (SYMBOLS - 4)  # (1, T)


def _loss(model: models.Seq2Seq, source: Tensor) -> Tensor:
    loss: Tensor = model.encoder(source, torch.ones_like(source, dtype=torch.bool)).output.square().mean()
    return loss


def _slope(lengths: list[int], values: list[float] | list[int]) -> float:
    """Exponent of T by least squares of the logarithms, over T > 4 D (or the longest two)."""
    chosen = [place for place, T in enumerate(lengths) if T > FIT_FROM] or [-2, -1]
    x, y = (np.log(np.array(one, dtype=np.float64)[chosen]) for one in (lengths, values))
    return float(np.polyfit(x, y, 1)[0])


STUDY = Study(
    "cost",
    "Recurrence, convolution and windowed attention cost time linear in the length, attention quadratic",
    "Vaswani et al. 2017, table 1; Dao et al. 2022 for the memory of tiled attention",
    measure,
)
