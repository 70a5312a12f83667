"""How float32 matrix products are computed on a CPU: as PyTorch does by default, or through oneDNN.

On processors without the instructions that oneDNN's reduced precision asks for, its `bf16` setting computes in float32
all the same, often faster than the default library. Elsewhere it rounds to bfloat16 (relative error about 1e-3).
Nothing but a measurement tells, so the mode is probed: it is taken where it is both faster and exact to float32
rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["MatrixMode", "current_matrix_mode", "matrix_mode", "probe_matrix_mode"]

MatrixMode = Literal["default", "onednn"]

_SETTINGS: dict[MatrixMode, str] = {"default": "none", "onednn": "bf16"}
_SHAPES = ((512, 256, 1024), (64, 1024, 256), (1024, 384, 256))  # rows, inner size, columns of typical layers
_REPEATS = 9
_MIN_GAIN = 1.3  # well above what a busy machine adds by chance: one seed must choose, and so round, alike each time
_MAX_ERROR = 1e-6


@contextmanager
def matrix_mode(mode: MatrixMode) -> Iterator[None]:
    """Compute float32 matrix products in this mode inside the block; the setting before is restored after it."""
    products = _products()
    if products is None:
        yield
        return
    before = products.fp32_precision
    products.fp32_precision = _SETTINGS[mode]
    try:
        yield
    finally:
        products.fp32_precision = before


def current_matrix_mode() -> MatrixMode:
    """The mode in force."""
    products = _products()
    return "onednn" if products is not None and products.fp32_precision == _SETTINGS["onednn"] else "default"


def _products() -> Any:
    """PyTorch's switch; versions before 2.9 have none."""
    return getattr(torch.backends.mkldnn, "matmul", None)


def probe_matrix_mode(product: Callable[[Tensor, Tensor], Tensor] = torch.matmul) -> MatrixMode:
    """Measure which mode to use on this machine with the current number of threads; takes a fraction of a second.

    Parameters
    ----------
    product : callable
        The product of two matrices that is measured.

    Returns
    -------
    "default" or "onednn"
        `onednn` if it is at least 1.3 times as fast over typical shapes and its relative error against float64 is below
        1e-6 for each of them.
    """
    if _products() is None or not torch.backends.mkldnn.is_available():
        return "default"
    pairs = [_operands(*shape) for shape in _SHAPES]
    with matrix_mode("onednn"):
        if max(_relative_error(product, a, b) for a, b in pairs) > _MAX_ERROR:
            return "default"
    times = [_seconds(product, *pair) for pair in pairs]
    gain = sum(default for default, _ in times) / sum(onednn for _, onednn in times)
    return "onednn" if gain >= _MIN_GAIN else "default"


def _operands(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor]:
    """Matrices (rows, inner) and, as a layer's weight is used, the transpose of (columns, inner)."""
    generator = torch.Generator().manual_seed(inner)
    return torch.randn(rows, inner, generator=generator), torch.randn(columns, inner, generator=generator).T


def _relative_error(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> float:
    exact = a.double() @ b.double()
    return float((product(a, b).double() - exact).norm() / exact.norm())


def _seconds(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> tuple[float, float]:
    """Shortest time in each mode, taken in turns: what else the machine does disturbs both alike."""
    times: dict[MatrixMode, list[float]] = {"default": [], "onednn": []}
    for _ in range(_REPEATS):
        for mode, measured in times.items():
            with matrix_mode(mode):
                start = time.perf_counter()
                product(a, b)
                measured.append(time.perf_counter() - start)
    return min(times["default"]), min(times["onednn"])
