"""Where a recurrent decoder starts: in the encoder's final state, as it is or projected, or in a learned one.

Axes: B batch, M memory size, H hidden.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from unrolled.reference import ops
from unrolled.reference.encoded import Encoded
from unrolled.reference.layer import FloatArray, Gradients, Weights, named, under
from unrolled.reference.layers import Linear
from unrolled.reference.states import HiddenState, LSTMState

__all__ = ["DirectStart", "LearnedStart", "ProjectedStart", "Start", "StartCache"]


class StartCache(NamedTuple):
    """What the backward pass of a start needs."""

    encoded: Encoded
    layers: list[Any]


class Start(Protocol):
    """From encoded sources to one start state a decoder layer, (B, H) each."""

    def forward(self, encoded: Encoded) -> tuple[tuple[Any, ...], StartCache]:
        """Start states and a cache."""

    def backward(self, d_states: tuple[Any, ...], cache: StartCache) -> tuple[Encoded, Gradients]:
        """∂L/∂encoded and parameter gradients."""


class DirectStart:
    """The encoder's final states themselves."""

    def forward(self, encoded: Encoded) -> tuple[tuple[Any, ...], StartCache]:
        """Start states and a cache."""
        return encoded.finals, StartCache(encoded, [])

    def backward(self, d_states: tuple[Any, ...], cache: StartCache) -> tuple[Encoded, Gradients]:
        """∂L/∂encoded, and no parameters."""
        return cache.encoded.zero_gradient()._replace(finals=d_states), {}


class LearnedStart:
    """One learned start state for every source; parameters `0.h` (H,), and `0.c` for an LSTM."""

    def __init__(self, parameters: Weights) -> None:
        self.parameters = parameters

    def forward(self, encoded: Encoded) -> tuple[tuple[Any, ...], StartCache]:
        """Start states and a cache."""
        states = [self._state(weights, len(encoded.mask)) for weights in _layers(self.parameters)]
        return tuple(states), StartCache(encoded, [])

    @staticmethod
    def _state(weights: Weights, batch_size: int) -> LSTMState | HiddenState:
        parts = {name: np.repeat(weight[None], batch_size, axis=0) for name, weight in weights.items()}
        return LSTMState(parts["h"], parts["c"]) if "c" in parts else HiddenState(parts["h"])

    def backward(self, d_states: tuple[Any, ...], cache: StartCache) -> tuple[Encoded, Gradients]:
        """Zero for the sources, and parameter gradients."""
        parts = (
            (f"{layer}.{name}", d) for layer, d_state in enumerate(d_states) for name, d in d_state._asdict().items()
        )
        return cache.encoded.zero_gradient(), {name: d.sum(axis=0) for name, d in parts}


class ProjectedCache(NamedTuple):
    """What one layer of `ProjectedStart` keeps."""

    h: ops.LinearCache
    active: FloatArray
    c: ops.LinearCache | None


class ProjectedStart:
    """``h = tanh(W h + b)``, ``c = W' c + b'`` of the encoder's final state; the top layers of both stacks are aligned.

    An LSTM after an encoder without cells starts both halves from its one vector.
    """

    def __init__(self, parameters: Weights) -> None:
        self.layers = [
            {name: Linear(under(weights, name)) for name in ("h", "c") if f"{name}.weight" in weights}
            for weights in _layers(parameters)
        ]

    def forward(self, encoded: Encoded) -> tuple[tuple[Any, ...], StartCache]:
        """Start states and a cache."""
        finals = encoded.summaries()
        pairs = [self._project(layer, finals[self._below(layer, finals)]) for layer in range(len(self.layers))]
        return tuple(state for state, _ in pairs), StartCache(encoded, [cache for _, cache in pairs])

    def _project(self, layer: int, final: tuple[FloatArray, ...]) -> tuple[LSTMState | HiddenState, ProjectedCache]:
        linear = self.layers[layer]
        y, h_cache = linear["h"].forward(final[0])
        h, active = ops.tanh_forward(y)
        if "c" not in linear:
            return HiddenState(h), ProjectedCache(h_cache, active, None)
        c, c_cache = linear["c"].forward(final[-1])
        return LSTMState(h, c), ProjectedCache(h_cache, active, c_cache)

    def backward(self, d_states: tuple[Any, ...], cache: StartCache) -> tuple[Encoded, Gradients]:
        """∂L/∂encoded and parameter gradients."""
        finals = cache.encoded.summaries()
        d_finals = [[np.zeros_like(part) for part in final] for final in finals]
        gradients: Gradients = {}
        for layer, (d_state, kept) in enumerate(zip(d_states, cache.layers, strict=True)):
            d_final = d_finals[self._below(layer, finals)]
            d_first, found = self.layers[layer]["h"].backward(ops.tanh_backward(d_state.h, kept.active), kept.h)
            d_final[0] += d_first
            gradients.update(named(f"{layer}.h", found))
            if kept.c is not None:
                d_last, found = self.layers[layer]["c"].backward(d_state.c, kept.c)
                d_final[-1] += d_last
                gradients.update(named(f"{layer}.c", found))
        return cache.encoded.summaries_backward(d_finals), gradients

    def _below(self, layer: int, finals: tuple[Any, ...]) -> int:
        """Which encoder layer starts a decoder layer."""
        return max(0, len(finals) - len(self.layers) + layer)


def _layers(parameters: Weights) -> list[dict[str, FloatArray]]:
    """Weights of each layer: ``0.…``, ``1.…``."""
    return [under(parameters, str(layer)) for layer in range(len({name.split(".", 1)[0] for name in parameters}))]
