"""What all models of P(y_t | y_<t) have in common: a decoder that is fed tokens, behind the one contract."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unrolled.reference.layer import BoolArray, FloatArray, Gradients, IntArray

__all__ = ["Autoregressive", "DecoderOutput", "LossAndGradients"]


class DecoderOutput(NamedTuple):
    """Result of `decode`: logits (R, n, V), the state after the tokens, and on request the attention (R, n, S)."""

    logits: FloatArray
    state: Any
    attention: FloatArray | None


class LossAndGradients(NamedTuple):
    """Sums over the labels of a batch: the loss in nats, how many labels, and ∂L/∂ of each parameter.

    Sums of several batches may be added; divide by the number of labels of them all.
    """

    loss: float
    num_labels: int
    gradients: Gradients


class Autoregressive:
    """The decoder contract, of a subclass that sets `decoder`.

    Notes
    -----
    `decode` on n tokens equals n calls on one token each, and any chunking. It never changes a state.
    """

    decoder: Any

    def initial_state(self, memory: Any, batch_size: int) -> Any:
        """State before the first token of `batch_size` rows, a multiple of the number of sources."""
        return self.decoder.initial_state(memory, batch_size)

    def decode(
        self,
        tokens: IntArray,
        memory: Any,
        state: Any,
        *,
        mask: BoolArray | None = None,
        reset: BoolArray | None = None,
        need_attention: bool = False,
    ) -> DecoderOutput:
        """Feed n ≥ 1 tokens a row and predict the one after each.

        Parameters
        ----------
        tokens : (R, n) int array
            R is a multiple of the number of sources: row r reads memory r // k.
        memory
            From `encode`; None for a language model.
        state
            From `initial_state` or an earlier call.
        mask : (R, n) bool array, optional
            Right-padded real tokens; state and positions advance by these alone.
        reset : (R, n) bool array, optional
            Tokens before which the row returns to its start; at padding it means nothing.
        need_attention : bool
            Return the weights over the source; asking changes nothing else.
        """
        if reset is not None:
            reset = reset if mask is None else reset & mask
            if reset.any():
                return self._decode_segments(tokens, memory, state, mask, reset, need_attention=need_attention)
        output, _ = self.decoder.forward(tokens, memory, state, mask=mask, need_attention=need_attention)
        return DecoderOutput(*output)

    def _decode_segments(
        self,
        tokens: IntArray,
        memory: Any,
        state: Any,
        mask: BoolArray | None,
        reset: BoolArray,
        *,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode all that lies between resets side by side, as rows of their own: one call, however many resets."""
        cut = Segments.before(reset)
        start = self.initial_state(memory, len(tokens))
        beams = 1 if memory is None else len(tokens) // len(memory.mask)
        (logits, last, weights), _ = self.decoder.forward(
            cut.apart(tokens),
            None if memory is None else memory.select(cut.row // beams),
            state.select(cut.row).restarted(cut.is_fresh, start.select(cut.row)),
            mask=cut.apart(np.ones_like(reset) if mask is None else mask),
            need_attention=need_attention,
        )
        attention = None if weights is None else cut.together(weights)
        return DecoderOutput(cut.together(logits), last.select(cut.last), attention)


class Segments(NamedTuple):
    """The rows of a batch cut before each reset into M segments, in order.

    `row` (M,) is the row that a segment was cut from, and `is_fresh` (M,) whether it begins with a reset; `last` (R,)
    is each row's last segment. `segment` and `step` (R, n) tell where each token went.
    """

    row: IntArray
    is_fresh: BoolArray
    last: IntArray
    segment: IntArray
    step: IntArray

    @classmethod
    def before(cls, reset: BoolArray) -> Segments:
        """Cut before each True of (R, n)."""
        begins = reset.copy()
        begins[:, 0] = True
        segment = begins.cumsum().reshape(reset.shape) - 1
        row, column = begins.nonzero()
        step = np.arange(reset.shape[1]) - column[segment]
        return cls(row, reset[row, column], segment[:, -1], segment, step)

    def apart(self, rows: Any) -> Any:
        """One right-padded row a segment: (R, n, ...) → (M, longest segment, ...)."""
        segments = np.zeros((len(self.row), self.step.max() + 1, *rows.shape[2:]), rows.dtype)
        segments[self.segment, self.step] = rows
        return segments

    def together(self, segments: FloatArray) -> FloatArray:
        """Undo `apart`: (M, longest segment, ...) → (R, n, ...)."""
        return segments[self.segment, self.step]
