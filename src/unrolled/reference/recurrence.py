"""The driver of time: any cell over many steps, in layers and directions, and back through all of them.

Padding is skipped: at a masked step the state stays as it is. So rows may be ragged, the last state is the last real
one, and the backward direction, which simply reads the steps from right to left, starts at each row's last real step.

Axes: B batch, T steps, I inputs, H hidden, D directions; inside the loops time comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from unrolled.reference.cell import Cell
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, Weights, under
from unrolled.reference.ops import dropout_backward, dropout_forward
from unrolled.reference.states import added, chosen

__all__ = ["Recurrent", "unroll_backward", "unroll_forward"]


# --- one cell over time ----------------------------------------------------------------------------------------------


class UnrollCache(NamedTuple):
    """What `unroll_backward` needs; steps in the order in which the cell took them."""

    x: FloatArray  # (T, B, I)
    steps: list[Any]
    real: list[BoolArray | None]  # (B, 1) a step, None for all
    is_reversed: bool


def unroll_forward(
    cell: Cell, x: FloatArray, start: Any, mask: BoolArray | None = None, *, is_reversed: bool = False
) -> tuple[FloatArray, Any, UnrollCache]:
    """Run a cell over a batch of sequences.

    Parameters
    ----------
    cell : Cell
    x : (B, T, I) array
    start : state of the cell
        (B, H) each.
    mask : (B, T) bool array, optional
        True = real step; at all others the state stays as it is.
    is_reversed : bool
        Read the steps from the last to the first.

    Returns
    -------
    h : (B, T, H) array
        After each step, in the order of x.
    last : state of the cell
        After each row's last real step in reading order; its start where there is none.
    cache : UnrollCache
    """
    order = slice(None, None, -1 if is_reversed else 1)
    x = np.ascontiguousarray(x.swapaxes(0, 1)[order])  # (B, T, I) -> (T, B, I)
    real = _real_steps(mask, len(x), order)
    gates = cell.input_part(x)  # (T, B, G·H): the only product with x, outside of the loop
    h = np.empty((*x.shape[:2], cell.hidden_size), gates.dtype)
    state, steps = start, []
    for t in range(len(x)):
        reached, step = cell.step(gates[t], state)
        kept = real[t]
        state = reached if kept is None else chosen(kept, reached, state)
        steps.append(step)
        h[t] = state.h
    return h[order].swapaxes(0, 1), state, UnrollCache(x, steps, real, is_reversed)


def unroll_backward(
    cell: Cell, d_h: FloatArray, d_last: Any | None, cache: UnrollCache, *, truncate: int | None = None
) -> tuple[FloatArray, Any, Gradients]:
    """Backpropagation through time.

    Parameters
    ----------
    cell : Cell
    d_h : (B, T, H) array
        ∂L/∂ of each step's output.
    d_last : state of the cell or None
        ∂L/∂ of the last state; none for zero.
    cache : UnrollCache
    truncate : int, optional
        Cut the gradient of the state at every multiple of this many steps, counted in reading order (truncated
        backpropagation, Williams & Peng 1990); the same as running the chunks one by one from detached states.

    Returns
    -------
    d_x : (B, T, I) array
    d_start : state of the cell
    gradients : dict of arrays
    """
    order = slice(None, None, -1 if cache.is_reversed else 1)
    d_h = d_h.swapaxes(0, 1)[order]  # (B, T, H) -> (T, B, H)
    zero = cell.zero_state(d_h.shape[1])
    d_state = zero if d_last is None else d_last
    d_input = d_recurrent = np.empty((*d_h.shape[:2], len(cell.weight_hh)), d_h.dtype)  # (T, B, G·H)
    for t in reversed(range(len(d_h))):
        d_state = d_state._replace(h=d_state.h + d_h[t])
        real, passed = cache.real[t], zero
        if real is not None:  # a row that skipped this step passes its gradient by the cell
            passed, d_state = chosen(real, zero, d_state), chosen(real, d_state, zero)
        step = cell.step_backward(d_state, cache.steps[t])
        d_input[t] = step.d_input
        if step.d_recurrent is not step.d_input:
            d_recurrent = np.empty_like(d_input) if d_recurrent is d_input else d_recurrent
            d_recurrent[t] = step.d_recurrent
        d_state = step.d_state if real is None else added(step.d_state, passed)
        if truncate is not None and t and t % truncate == 0:
            d_state = zero
    d_x, gradients = cell.gradients(cache.x, d_input, d_recurrent, cache.steps)
    return d_x[order].swapaxes(0, 1), d_state, gradients


def _real_steps(mask: BoolArray | None, num_steps: int, order: slice) -> list[BoolArray | None]:
    """The mask of each step, (B, 1); None where the whole batch is real, so that such steps cost nothing."""
    if mask is None:
        return [None] * num_steps
    return [None if step.all() else step[:, None] for step in mask.T[order]]


# --- layers and directions -------------------------------------------------------------------------------------------

_DIRECTIONS = ("fwd", "bwd")


class RecurrentCache(NamedTuple):
    """What `Recurrent.backward` needs: the runs of each layer's directions, and the dropout mask before each layer."""

    runs: list[tuple[UnrollCache, ...]]
    dropped: list[FloatArray | None]


class Recurrent:
    """A stack of recurrent layers, each in one or two directions, with dropout between layers.

    Parameters
    ----------
    layers : sequence of tuples of Cell
        The forward cell of each layer, and the backward one if there is one.
    dropout : float
        Rate between layers; in effect while a generator is passed.
    is_variational : bool
        Let a row drop the same entries at all steps.
    is_reversed : bool
        Let the first direction read from right to left (and the second, if any, from left to right).

    Attributes
    ----------
    parameters : dict of arrays
        `0.fwd.weight_ih` and so on.
    """

    def __init__(
        self,
        layers: Sequence[tuple[Cell, ...]],
        *,
        dropout: float = 0.0,
        is_variational: bool = False,
        is_reversed: bool = False,
    ) -> None:
        self.layers = tuple(layers)
        self.dropout = dropout
        self.is_variational = is_variational
        self.is_reversed = is_reversed
        self.parameters = {
            f"{layer}.{direction}.{name}": weight
            for layer, cells in enumerate(self.layers)
            for direction, cell in zip(_DIRECTIONS, cells, strict=False)
            for name, weight in cell.parameters.items()
        }

    @classmethod
    def from_parameters(
        cls,
        cell: type[Cell],
        parameters: Weights,
        *,
        dropout: float = 0.0,
        is_variational: bool = False,
        is_reversed: bool = False,
    ) -> Self:
        """As many layers and directions of one kind of cell as there are weights for."""
        num_layers = len({name.split(".", 1)[0] for name in parameters})
        found = [
            [under(parameters, f"{layer}.{direction}") for direction in _DIRECTIONS] for layer in range(num_layers)
        ]
        layers = [tuple(cell.from_parameters(weights) for weights in directions if weights) for directions in found]
        return cls(layers, dropout=dropout, is_variational=is_variational, is_reversed=is_reversed)

    def forward(
        self,
        x: FloatArray,
        start: tuple[Any, ...] | None = None,
        mask: BoolArray | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, tuple[Any, ...]], RecurrentCache]:
        """Run all layers over a batch.

        Parameters
        ----------
        x : (B, T, I) array
        start : tuple of states, optional
            One a layer, directions side by side: (B, D·H) each. None for zeros.
        mask : (B, T) bool array, optional
            True = real step.
        rng : Generator, optional
            Where dropout masks are drawn from; none in evaluation.

        Returns
        -------
        (output, last) : (B, T, D·H) array, and a tuple of states
            Directions side by side, in the order of x; states after each row's last real step in each direction.
        cache : RecurrentCache
        """
        last, cache = [], RecurrentCache([], [])
        for number, cells in enumerate(self.layers):
            rate = self.dropout if number else 0.0
            x, dropped = dropout_forward(x, rate, rng, is_shared=self.is_variational)
            begin = _starts(cells, None if start is None else start[number], len(x))
            x, state, runs = _layer_forward(cells, x, begin, mask, is_reversed=self.is_reversed)
            last.append(state)
            cache.runs.append(runs)
            cache.dropped.append(dropped)
        return (x, tuple(last)), cache

    def backward(
        self,
        d_output: FloatArray,
        d_last: tuple[Any, ...] | None,
        cache: RecurrentCache,
        *,
        truncate: int | None = None,
    ) -> tuple[FloatArray, tuple[Any, ...], Gradients]:
        """∂L/∂x, ∂L/∂start and parameter gradients; `d_last` None for zero, `truncate` as in `unroll_backward`."""
        d_start, gradients = [], {}
        for number in reversed(range(len(self.layers))):
            d_state = None if d_last is None else d_last[number]
            runs = cache.runs[number]
            d_output, d_begin, found = _layer_backward(self.layers[number], d_output, d_state, runs, truncate)
            d_output = dropout_backward(d_output, cache.dropped[number])
            d_start.append(d_begin)
            gradients.update({f"{number}.{name}": gradient for name, gradient in found.items()})
        return d_output, tuple(reversed(d_start)), gradients


def _layer_forward(
    cells: tuple[Cell, ...], x: FloatArray, starts: list[Any], mask: BoolArray | None, *, is_reversed: bool
) -> tuple[FloatArray, Any, tuple[UnrollCache, ...]]:
    runs = [
        unroll_forward(cell, x, start, mask, is_reversed=is_reversed != (direction == 1))
        for direction, (cell, start) in enumerate(zip(cells, starts, strict=True))
    ]
    outputs, last, caches = zip(*runs, strict=True)
    return _side_by_side(outputs), _joined(last), caches


def _layer_backward(
    cells: tuple[Cell, ...],
    d_output: FloatArray,
    d_last: Any | None,
    caches: tuple[UnrollCache, ...],
    truncate: int | None,
) -> tuple[FloatArray, Any, Gradients]:
    d_h, d_states = np.split(d_output, len(cells), axis=2), _starts(cells, d_last, len(d_output))
    runs = [
        unroll_backward(cell, d_out, d_state, cache, truncate=truncate)
        for cell, d_out, d_state, cache in zip(cells, d_h, d_states, caches, strict=True)
    ]
    d_x, d_start, gradients = zip(*runs, strict=True)
    together = zip(_DIRECTIONS, gradients, strict=False)
    named_gradients = {f"{way}.{name}": value for way, found in together for name, value in found.items()}
    return sum(d_x[1:], start=d_x[0]), _joined(d_start), named_gradients


def _starts(cells: tuple[Cell, ...], state: Any | None, batch_size: int) -> list[Any]:
    """One state a direction: (B, D·H) → D of (B, H); zeros for none."""
    if state is None:
        return [cell.zero_state(batch_size) for cell in cells]
    parts = zip(*(np.split(part, len(cells), axis=1) for part in state), strict=True)
    return [type(state)(*part) for part in parts]


def _joined(states: Sequence[Any]) -> Any:
    """Undo `_starts`."""
    return type(states[0])(*(_side_by_side(parts) for parts in zip(*states, strict=True)))


def _side_by_side(parts: Sequence[FloatArray]) -> FloatArray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
