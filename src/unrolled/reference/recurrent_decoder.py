"""Recurrent decoder: attention after the cell (Luong et al. 2015), or a fixed vector alone (Sutskever et al. 2014)."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from unrolled import config
from unrolled.parameters import starts_directly
from unrolled.reference import ops
from unrolled.reference.encoders import CELLS, Encoded
from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray, Weights, named, under
from unrolled.reference.layers import Embedding, Linear
from unrolled.reference.recurrence import Recurrent, RecurrentCache
from unrolled.reference.scores import SCORES, Luong, LuongCache
from unrolled.reference.states import HiddenState, LSTMState, mapped, selected

__all__ = ["RecurrentDecoder", "RecurrentMemory", "RecurrentState"]


class RecurrentMemory(NamedTuple):
    """Encoder output (B, S, M), its mask (B, S), its keys (B, S, H) where there is attention, and the start states.

    Its gradient has the same form.
    """

    output: FloatArray
    mask: BoolArray
    keys: FloatArray | None
    start: tuple[Any, ...]

    def select(self, sources: IntArray) -> Self:
        """Memory of these sources alone."""
        return selected(self, sources)


class RecurrentState(NamedTuple):
    """One cell state a layer."""

    layers: tuple[Any, ...]

    def select(self, rows: IntArray) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same state: there is no graph to cut."""
        return self

    def restarted(self, rows: BoolArray, start: RecurrentState) -> RecurrentState:
        """State with these rows (R,) taken back to their start."""
        pairs = zip(start.layers, self.layers, strict=True)
        return RecurrentState(tuple(_chosen(rows[:, None], begin, now) for begin, now in pairs))


def _chosen(rows: BoolArray, yes: Any, no: Any) -> Any:
    return type(no)(*(np.where(rows, a, b) for a, b in zip(yes, no, strict=True)))


# --- start states ----------------------------------------------------------------------------------------------------


class StartCache(NamedTuple):
    """What `Start.backward` needs."""

    h: ops.LinearCache
    active: FloatArray
    c: ops.LinearCache | None


class Start:
    """From an encoder's final state to one layer's start state: ``h = tanh(W h + b)``, ``c = W c + b``.

    An LSTM after an encoder without cells starts both halves from its one vector.
    """

    def __init__(self, parameters: Weights) -> None:
        self.h = Linear(under(parameters, "h"))
        self.c = Linear(under(parameters, "c")) if "c.weight" in parameters else None

    def forward(self, final: tuple[FloatArray, ...]) -> tuple[Any, StartCache]:
        """Start state, (B, H) each, of a final one, (B, M) each."""
        y, h_cache = self.h.forward(final[0])
        h, active = ops.tanh_forward(y)
        if self.c is None:
            return HiddenState(h), StartCache(h_cache, active, None)
        c, c_cache = self.c.forward(final[-1])
        return LSTMState(h, c), StartCache(h_cache, active, c_cache)

    def backward(self, d_state: Any, cache: StartCache) -> tuple[FloatArray, FloatArray | None, Gradients]:
        """∂L/∂ of the first and of the last part of the final state, and parameter gradients."""
        d_first, h = self.h.backward(ops.tanh_backward(d_state.h, cache.active), cache.h)
        if self.c is None or cache.c is None:
            return d_first, None, named("h", h)
        d_last, c = self.c.backward(d_state.c, cache.c)
        return d_first, d_last, {**named("h", h), **named("c", c)}


# --- decoder ---------------------------------------------------------------------------------------------------------


class PrepareCache(NamedTuple):
    """What `RecurrentDecoder.prepare_backward` needs."""

    encoded: Encoded
    keys: Any
    starts: list[StartCache]


class RecurrentDecoderCache(NamedTuple):
    """What `RecurrentDecoder.backward` needs."""

    embedding: Any
    layers: RecurrentCache
    attention: LuongCache | None
    dropped: FloatArray | None
    output: ops.LinearCache
    memory: RecurrentMemory


class RecurrentDecoder:
    """Recurrent layers over the target, attention to the source after them, then ``logits = W_s s̃ + b``.

    Parameters
    ----------
    settings : config.RecurrentDecoder
    encoder : config.Encoder
    parameters : dict
        Named as in the inventory, without ``decoder.``.
    """

    def __init__(self, settings: config.RecurrentDecoder, encoder: config.Encoder, parameters: Weights) -> None:
        self.parameters = parameters
        self.dropout = settings.dropout
        self.embedding = Embedding(under(parameters, "embedding"), dropout=settings.dropout)
        self.layers = Recurrent.from_parameters(
            CELLS[settings.cell], under(parameters, "layers"), dropout=settings.dropout
        )
        self.starts = (
            []
            if starts_directly(encoder, settings)
            else [Start(under(parameters, f"start.{number}")) for number in range(settings.num_layers)]
        )
        self.attention = None
        if settings.attention != "none":
            score = SCORES[settings.attention](under(parameters, "attention"))
            self.attention = Luong(score, under(parameters, "combine"))
        self.output = Linear(under(parameters, "output"))

    # --- once a source -----------------------------------------------------------------------------------------------

    def prepare(self, encoded: Encoded) -> tuple[RecurrentMemory, PrepareCache]:
        """Compute once a source what every step needs."""
        keys, keys_cache = None, None
        if self.attention is not None:
            keys, keys_cache = self.attention.score.keys(encoded.output)
        finals = encoded.finals or ((_masked_mean(encoded.output, encoded.mask),),)
        pairs = [start.forward(finals[self._source_of(number, finals)]) for number, start in enumerate(self.starts)]
        start = tuple(state for state, _ in pairs) if self.starts else encoded.finals
        memory = RecurrentMemory(encoded.output, encoded.mask, keys, start)
        return memory, PrepareCache(encoded, keys_cache, [cache for _, cache in pairs])

    def prepare_backward(self, d_memory: RecurrentMemory, cache: PrepareCache) -> tuple[Encoded, Gradients]:
        """∂L/∂encoded and parameter gradients."""
        encoded = cache.encoded
        d_output, gradients = d_memory.output, {}
        if self.attention is not None:
            assert d_memory.keys is not None
            d_from_keys, found = self.attention.score.keys_backward(d_memory.keys, cache.keys)
            d_output = d_output + d_from_keys
            gradients.update(named("attention", found))
        if not self.starts:
            return Encoded(d_output, encoded.mask, d_memory.start), gradients
        finals = encoded.finals or ((np.zeros_like(encoded.output[:, 0]),),)
        d_finals = [[np.zeros_like(part) for part in final] for final in finals]
        for number, (start, d_state) in enumerate(zip(self.starts, d_memory.start, strict=True)):
            d_first, d_last, found = start.backward(d_state, cache.starts[number])
            d_final = d_finals[self._source_of(number, finals)]
            d_final[0] += d_first
            if d_last is not None:
                d_final[-1] += d_last
            gradients.update(named(f"start.{number}", found))
        if not encoded.finals:
            d_output = d_output + _masked_mean_backward(d_finals[0][0], encoded.mask)
            return Encoded(d_output, encoded.mask, ()), gradients
        states = tuple(type(final)(*d_final) for final, d_final in zip(encoded.finals, d_finals, strict=True))
        return Encoded(d_output, encoded.mask, states), gradients

    def _source_of(self, layer: int, finals: tuple[Any, ...]) -> int:
        """Which encoder layer starts a decoder layer: the top layers of both stacks are aligned."""
        return max(0, len(finals) - len(self.starts) + layer)

    # --- steps -------------------------------------------------------------------------------------------------------

    def initial_state(self, memory: RecurrentMemory, batch_size: int) -> RecurrentState:
        """Start of `batch_size` rows, k = batch_size / B of them a source."""
        beams = batch_size // len(memory.mask)
        start: tuple[Any, ...] = mapped(memory.start, lambda part: np.repeat(part, beams, axis=0))
        return RecurrentState(start)

    def forward(
        self,
        tokens: IntArray,
        memory: RecurrentMemory,
        state: RecurrentState,
        *,
        mask: BoolArray | None = None,
        need_attention: bool = False,
        rng: np.random.Generator | None = None,
    ) -> tuple[tuple[FloatArray, RecurrentState, FloatArray | None], RecurrentDecoderCache]:
        """Decode ids (R, n); R is a multiple of the number of sources.

        Returns
        -------
        (logits, state, attention) : (R, n, V) array, the state after the tokens, (R, n, S) array or None
        cache : RecurrentDecoderCache
        """
        x, embedding = self.embedding.forward(tokens, rng)  # (1)
        (hidden, last), layers = self.layers.forward(x, state.layers, mask, rng)  # (2)
        weights, attention = None, None
        if self.attention is not None:
            assert memory.keys is not None
            (hidden, weights), attention = self.attention.forward(
                hidden, memory.output, memory.keys, memory.mask
            )  # (3)
        hidden, dropped = ops.dropout_forward(hidden, self.dropout, rng)  # (4)
        logits, output = self.output.forward(hidden)  # (5)
        cache = RecurrentDecoderCache(embedding, layers, attention, dropped, output, memory)
        return (logits, RecurrentState(last), weights if need_attention else None), cache

    def backward(self, d_logits: FloatArray, cache: RecurrentDecoderCache) -> tuple[RecurrentMemory, Gradients]:
        """∂L/∂memory, the start state included, and parameter gradients.

        For a forward pass from `initial_state` with one row a source; the last state is taken to matter no more.
        """
        d_hidden, found = self.output.backward(d_logits, cache.output)  # (5)
        gradients = named("output", found)
        d_hidden = ops.dropout_backward(d_hidden, cache.dropped)  # (4)
        d_output, d_keys = np.zeros_like(cache.memory.output), None
        if self.attention is not None and cache.attention is not None:
            d_hidden, d_output, d_keys, found = self.attention.backward(d_hidden, cache.attention)  # (3)
            gradients.update(found)
        d_x, d_start, found = self.layers.backward(d_hidden, None, cache.layers)  # (2)
        gradients.update(named("layers", found))
        gradients.update(named("embedding", self.embedding.backward(d_x, cache.embedding)))  # (1)
        return RecurrentMemory(d_output, cache.memory.mask, d_keys, d_start), gradients


def _masked_mean(output: FloatArray, mask: BoolArray) -> FloatArray:
    """Mean over the real positions: (B, S, M) → (B, M); zero where there are none."""
    mean: FloatArray = (_shares(mask, output.dtype)[:, None] @ output)[:, 0]
    return mean


def _masked_mean_backward(d_mean: FloatArray, mask: BoolArray) -> FloatArray:
    d_output: FloatArray = _shares(mask, d_mean.dtype)[..., None] * d_mean[:, None]
    return d_output


def _shares(mask: BoolArray, dtype: np.dtype[Any]) -> FloatArray:
    """Equal weights of the real positions that sum to 1, (B, S)."""
    real = mask.astype(dtype)
    shares: FloatArray = real / np.maximum(real.sum(axis=1, keepdims=True), 1.0)
    return shares
