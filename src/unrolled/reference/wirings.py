"""Where the source enters a recurrent decoder: at the start alone, after the cell, or before it.

Each wiring runs the decoder's recurrent layers over embedded inputs (R, n, E) and returns the features (R, n, H) that
the output layer reads. `FixedVector` and `Luong` know all inputs of the cells in advance; in `InputFeeding` and
`Bahdanau` a step's input depends on the step before, so they go step by step, forth and back.

Axes: R rows = sources B × k, n steps, E embedding, H hidden, M memory, S source.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from unrolled.reference import ops
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, accumulate, named
from unrolled.reference.layers import Linear
from unrolled.reference.recurrence import Recurrent, RecurrentCache
from unrolled.reference.scores import AttendCache, Score, attend_backward, attend_forward
from unrolled.reference.states import chosen, mapped, selected

__all__ = ["Bahdanau", "FixedVector", "InputFeeding", "Luong", "RecurrentMemory", "RecurrentState", "Wiring"]


class RecurrentMemory(NamedTuple):
    """A batch of sources as a recurrent decoder reads it.

    Encoder output (B, S, M), its mask (B, S), its keys (B, S, H) where there is attention, the fixed vector (B, M)
    where it is fed at every step, and the start states. Its gradient has the same form.
    """

    output: FloatArray
    mask: BoolArray
    keys: FloatArray | None
    vector: FloatArray | None
    start: tuple[Any, ...]

    def select(self, sources: IntArray) -> Self:
        """Memory of these sources alone."""
        return selected(self, sources)

    def zero_gradient(self) -> RecurrentMemory:
        """∂L/∂memory before anything is added to it."""
        return mapped(np.zeros_like, self)._replace(mask=self.mask)


class RecurrentState(NamedTuple):
    """One cell state a layer, and with input feeding the attended vector s̃ of the step before, (R, H)."""

    layers: tuple[Any, ...]
    attended: FloatArray | None

    def select(self, rows: IntArray) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same state: there is no graph to cut."""
        return self

    def restarted(self, rows: BoolArray, start: RecurrentState) -> RecurrentState:
        """State with these rows (R,) taken back to their start."""
        return chosen(rows[:, None], start, self)


Run = tuple[tuple[FloatArray, FloatArray | None, RecurrentState], Any]
RunGradients = tuple[FloatArray, RecurrentMemory, Gradients]
StepGradients = tuple[FloatArray, RecurrentState, tuple[FloatArray, FloatArray], Gradients]


class Wiring(Protocol):
    """How a recurrent decoder reads the source."""

    @property
    def score(self) -> Score | None:
        """How states and source positions are compared, if they are."""

    def forward(
        self,
        x: FloatArray,
        memory: RecurrentMemory,
        state: RecurrentState,
        mask: BoolArray | None,
        rng: np.random.Generator | None,
    ) -> Run:
        """Features (R, n, H), attention weights (R, n, S) if any, the state after; and a cache."""

    def backward(self, d_features: FloatArray, cache: Any) -> RunGradients:
        """∂L/∂x, ∂L/∂memory with the start state in it, and parameter gradients.

        Of a forward pass without a mask from the start state, one row a source.
        """


# --- all steps at once -----------------------------------------------------------------------------------------------


class FixedVectorCache(NamedTuple):
    """What `FixedVector.backward` needs."""

    layers: RecurrentCache
    memory: RecurrentMemory
    embedding_dim: int


class FixedVector:
    """No attention: the source is in the start state (Sutskever et al. 2014).

    Where the memory holds a fixed vector, it is also in every step's input (Cho et al. 2014).
    """

    score = None

    def __init__(self, layers: Recurrent) -> None:
        self.layers = layers

    def forward(
        self,
        x: FloatArray,
        memory: RecurrentMemory,
        state: RecurrentState,
        mask: BoolArray | None,
        rng: np.random.Generator | None,
    ) -> Run:
        """Run all steps."""
        cache = (memory, x.shape[-1])
        if memory.vector is not None:
            vector = np.repeat(memory.vector, len(x) // len(memory.mask), axis=0)[:, None]  # (B, M) -> (R, 1, M)
            x = np.concatenate([x, np.broadcast_to(vector, (*x.shape[:2], vector.shape[-1]))], axis=-1)  # (1)
        (hidden, last), layers = self.layers.forward(x, state.layers, mask, rng)  # (2)
        return (hidden, None, RecurrentState(last, None)), FixedVectorCache(layers, *cache)

    def backward(self, d_features: FloatArray, cache: FixedVectorCache) -> RunGradients:
        """∂L/∂x, ∂L/∂memory, and parameter gradients."""
        d_x, d_start, found = self.layers.backward(d_features, None, cache.layers)  # (2)
        d_memory = cache.memory.zero_gradient()._replace(start=d_start)
        if cache.memory.vector is not None:
            d_memory = d_memory._replace(vector=d_x[..., cache.embedding_dim :].sum(axis=1))  # (1)
        return d_x[..., : cache.embedding_dim], d_memory, named("layers", found)


class LuongCache(NamedTuple):
    """What `Luong.backward` needs."""

    layers: RecurrentCache
    attended: AttendCache
    combined: tuple[ops.LinearCache, FloatArray]
    memory: RecurrentMemory


class Luong:
    """Attention after the cell: ``s̃ = tanh(W_c [context; s] + b)`` (Luong et al. 2015, eq. 5)."""

    def __init__(self, layers: Recurrent, score: Score, combine: Weights) -> None:
        self.layers = layers
        self.score = score
        self.combine = Linear(combine)

    def forward(
        self,
        x: FloatArray,
        memory: RecurrentMemory,
        state: RecurrentState,
        mask: BoolArray | None,
        rng: np.random.Generator | None,
    ) -> tuple[tuple[FloatArray, FloatArray, RecurrentState], LuongCache]:
        """Run all steps."""
        assert memory.keys is not None
        (hidden, last), layers = self.layers.forward(x, state.layers, mask, rng)  # (1)
        (context, weights), attended = attend_forward(
            self.score, hidden, memory.output, memory.keys, memory.mask
        )  # (2)
        features, combined = _combine_forward(self.combine, context, hidden)  # (3)
        return (features, weights, RecurrentState(last, None)), LuongCache(layers, attended, combined, memory)

    def backward(
        self, d_features: FloatArray, cache: LuongCache, d_last: tuple[Any, ...] | None = None
    ) -> RunGradients:
        """∂L/∂x, ∂L/∂memory, and parameter gradients; `d_last` is ∂L/∂ of the layers' last states, none for zero."""
        M = cache.memory.output.shape[-1]
        d_joined, combine = _combine_backward(self.combine, d_features, cache.combined)  # (3)
        d_query, d_output, d_keys, score = attend_backward(self.score, d_joined[..., :M], cache.attended)  # (2)
        d_x, d_start, layers = self.layers.backward(d_joined[..., M:] + d_query, d_last, cache.layers)  # (1)
        d_memory = RecurrentMemory(d_output, cache.memory.mask, d_keys, None, d_start)
        return d_x, d_memory, {**named("layers", layers), **named("attention", score), **combine}


# --- step by step ----------------------------------------------------------------------------------------------------


class StepwiseCache(NamedTuple):
    """What the backward pass of a stepwise wiring needs."""

    steps: list[Any]
    memory: RecurrentMemory


class Stepwise:
    """What the stepwise wirings share: the loops over time. A step is the subclass's own."""

    def forward(
        self,
        x: FloatArray,
        memory: RecurrentMemory,
        state: RecurrentState,
        mask: BoolArray | None,
        rng: np.random.Generator | None,
    ) -> Run:
        """Run step after step; at a masked one the state stays as it is."""
        features, attention, steps = [], [], []
        for t in range(x.shape[1]):
            feature, weights, after, step = self._step(x[:, t : t + 1], memory, state, rng)
            state = after if mask is None else chosen(mask[:, t : t + 1], after, state)
            features.append(feature)
            attention.append(weights)
            steps.append(step)
        outputs = np.concatenate(features, axis=1), np.concatenate(attention, axis=1), state
        return outputs, StepwiseCache(steps, memory)

    def backward(self, d_features: FloatArray, cache: StepwiseCache) -> RunGradients:
        """∂L/∂x, ∂L/∂memory, and parameter gradients."""
        memory = cache.memory.zero_gradient()
        d_state = RecurrentState(memory.start, np.zeros_like(d_features[:, 0]))
        d_x: list[FloatArray] = []
        gradients: Gradients = {}
        for t in reversed(range(d_features.shape[1])):
            d_now, d_state, (d_output, d_keys), found = self._step_backward(
                d_features[:, t : t + 1], d_state, cache.steps[t]
            )
            d_x.append(d_now)
            memory.output[:] += d_output
            assert memory.keys is not None
            memory.keys[:] += d_keys
            accumulate(gradients, found)
        return np.concatenate(d_x[::-1], axis=1), memory._replace(start=d_state.layers), gradients

    def _step(
        self, x: FloatArray, memory: RecurrentMemory, state: RecurrentState, rng: np.random.Generator | None
    ) -> tuple[FloatArray, FloatArray, RecurrentState, Any]:
        """Feature (R, 1, H), weights (R, 1, S), state after; and a cache."""
        raise NotImplementedError

    def _step_backward(self, d_feature: FloatArray, d_state: RecurrentState, cache: Any) -> StepGradients:
        """∂L/∂x, ∂L/∂state before, ∂L/∂(output, keys), and parameter gradients."""
        raise NotImplementedError


class InputFeeding(Stepwise):
    """`Luong`, with s̃ of the step before, at first zero, in the cell's input (Luong et al. 2015, section 3.3)."""

    def __init__(self, layers: Recurrent, score: Score, combine: Weights) -> None:
        self.score = score
        self.luong = Luong(layers, score, combine)

    def _step(
        self, x: FloatArray, memory: RecurrentMemory, state: RecurrentState, rng: np.random.Generator | None
    ) -> tuple[FloatArray, FloatArray, RecurrentState, LuongCache]:
        assert state.attended is not None
        fed = np.concatenate([x, state.attended[:, None]], axis=-1)  # (1)
        (feature, weights, after), step = self.luong.forward(fed, memory, state, None, rng)  # (2)
        return feature, weights, RecurrentState(after.layers, feature[:, 0]), step

    def _step_backward(self, d_feature: FloatArray, d_state: RecurrentState, cache: LuongCache) -> StepGradients:
        assert d_state.attended is not None
        d_feature = d_feature + d_state.attended[:, None]
        d_fed, d_memory, gradients = self.luong.backward(d_feature, cache, d_state.layers)  # (2)
        assert d_memory.keys is not None
        E = d_fed.shape[-1] - d_feature.shape[-1]
        d_before = RecurrentState(d_memory.start, d_fed[:, 0, E:])  # (1)
        return d_fed[..., :E], d_before, (d_memory.output, d_memory.keys), gradients


class BahdanauCache(NamedTuple):
    """What one step of `Bahdanau` keeps."""

    attended: AttendCache
    layers: RecurrentCache
    combined: tuple[ops.LinearCache, FloatArray]
    embedding_dim: int


class Bahdanau(Stepwise):
    """The state before the cell asks, and the context is part of the cell's input (Bahdanau et al. 2014, appendix A.2).

    The readout is ``tanh(W_c [s; context; embedding] + b)``, with tanh in place of the paper's maxout.
    """

    def __init__(self, layers: Recurrent, score: Score, combine: Weights) -> None:
        self.layers = layers
        self.score = score
        self.combine = Linear(combine)

    def _step(
        self, x: FloatArray, memory: RecurrentMemory, state: RecurrentState, rng: np.random.Generator | None
    ) -> tuple[FloatArray, FloatArray, RecurrentState, BahdanauCache]:
        assert memory.keys is not None
        query = state.layers[-1].h[:, None]
        (context, weights), attended = attend_forward(self.score, query, memory.output, memory.keys, memory.mask)  # (1)
        fed = np.concatenate([x, context], axis=-1)  # (2)
        (hidden, last), layers = self.layers.forward(fed, state.layers, None, rng)  # (3)
        feature, combined = _combine_forward(self.combine, hidden, context, x)  # (4)
        return feature, weights, RecurrentState(last, None), BahdanauCache(attended, layers, combined, x.shape[-1])

    def _step_backward(self, d_feature: FloatArray, d_state: RecurrentState, cache: BahdanauCache) -> StepGradients:
        H, E = d_feature.shape[-1], cache.embedding_dim
        d_joined, combine = _combine_backward(self.combine, d_feature, cache.combined)  # (4)
        d_hidden, d_context, d_x = d_joined[..., :H], d_joined[..., H:-E], d_joined[..., -E:]
        d_fed, d_layers, layers = self.layers.backward(d_hidden, d_state.layers, cache.layers)  # (3)
        d_x, d_context = d_x + d_fed[..., :E], d_context + d_fed[..., E:]  # (2)
        d_query, d_output, d_keys, score = attend_backward(self.score, d_context, cache.attended)  # (1)
        top = d_layers[-1]._replace(h=d_layers[-1].h + d_query[:, 0])
        gradients = {**named("layers", layers), **named("attention", score), **combine}
        return d_x, RecurrentState((*d_layers[:-1], top), d_state.attended), (d_output, d_keys), gradients


# --- readout ---------------------------------------------------------------------------------------------------------


def _combine_forward(combine: Linear, *parts: FloatArray) -> tuple[FloatArray, tuple[ops.LinearCache, FloatArray]]:
    """``tanh(W_c [parts] + b)``."""
    y, cache = combine.forward(np.concatenate(parts, axis=-1))
    y, active = ops.tanh_forward(y)
    return y, (cache, active)


def _combine_backward(
    combine: Linear, d_y: FloatArray, cache: tuple[ops.LinearCache, FloatArray]
) -> tuple[FloatArray, Gradients]:
    d_joined, found = combine.backward(ops.tanh_backward(d_y, cache[1]), cache[0])
    return d_joined, named("combine", found)
