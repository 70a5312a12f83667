"""What all models of P(y_t | y_<t) have in common: a decoder that is fed tokens, behind the one contract."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unrolled.models.contract import DecoderOutput

__all__ = ["Autoregressive"]


class Autoregressive(nn.Module):
    """The decoder contract, of a subclass that sets `decoder`.

    Notes
    -----
    `decode` on n tokens equals n calls on one token each, and any chunking. It never changes a state.
    """

    decoder: nn.Module

    def initial_state(self, memory: Any, batch_size: int) -> Any:
        """State before the first token of `batch_size` rows, a multiple of the number of sources."""
        return self.decoder.initial_state(memory, batch_size)  # type: ignore[operator]

    def decode(
        self,
        tokens: Tensor,
        memory: Any,
        state: Any,
        *,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
        classes: Tensor | None = None,
        need_attention: bool = False,
    ) -> DecoderOutput:
        """Feed n ≥ 1 tokens a row and predict the one after each.

        Parameters
        ----------
        tokens : int64 Tensor (B, n)
            B is a multiple of the number of sources: row r reads memory r // k.
        memory
            From `encode`; None for a language model.
        state
            From `initial_state` or an earlier call.
        mask : bool Tensor (B, n), optional
            Right-padded real tokens; state and positions advance by these alone.
        reset : bool Tensor (B, n), optional
            Tokens before which the row returns to its start; at padding it means nothing.
        classes : int64 Tensor (K,), optional
            Compute the logits of these symbols alone, in this order; all V where it is absent.
        need_attention : bool
            Return the weights over the source; asking changes nothing else.
        """
        if reset is not None:
            reset = reset if mask is None else reset & mask
            if reset[:, 0].any():
                state = state.restarted(reset[:, 0], self.initial_state(memory, len(tokens)))
            if reset[:, 1:].any():
                return self._decode_segments(
                    tokens, memory, state, mask, reset, classes=classes, need_attention=need_attention
                )
        output: DecoderOutput = self.decoder(
            tokens, memory, state, mask=mask, classes=classes, need_attention=need_attention
        )
        return output

    def _decode_segments(
        self,
        tokens: Tensor,
        memory: Any,
        state: Any,
        mask: Tensor | None,
        reset: Tensor,
        *,
        classes: Tensor | None,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode all that lies between resets side by side, as rows of their own: one call, however many resets.

        Rows that begin with one are at their start already.
        """
        cut = Segments.before(reset)
        start = self.initial_state(memory, len(tokens))
        beams = 1 if memory is None else len(tokens) // len(memory.mask)
        output = self.decoder(
            cut.apart(tokens),
            None if memory is None else memory.select(cut.row // beams),
            state.select(cut.row).restarted(cut.is_fresh, start.select(cut.row)),
            mask=cut.apart(torch.ones_like(reset) if mask is None else mask),
            classes=classes,
            need_attention=need_attention,
        )
        attention = None if output.attention is None else cut.together(output.attention)
        return DecoderOutput(cut.together(output.logits), output.state.select(cut.last), attention)


class Segments(NamedTuple):
    """The rows of a batch cut before each reset into M segments, in order.

    `row` (M,) is the row that a segment was cut from, and `is_fresh` (M,) whether it begins with a reset; `last` (B,)
    is each row's last segment. `segment` and `step` (B, n) tell where each token went.
    """

    row: Tensor
    is_fresh: Tensor
    last: Tensor
    segment: Tensor
    step: Tensor

    @classmethod
    def before(cls, reset: Tensor) -> Segments:
        """Cut before each True of (B, n)."""
        begins = reset.clone()
        begins[:, 0] = True
        segment = begins.flatten().cumsum(0).view_as(reset) - 1
        row, column = begins.nonzero(as_tuple=True)
        step = torch.arange(reset.shape[1], device=reset.device) - column[segment]
        return cls(row, reset[row, column], segment[:, -1], segment, step)

    def apart(self, rows: Tensor) -> Tensor:
        """One right-padded row a segment: (B, n, ...) → (M, longest segment, ...)."""
        segments = rows.new_zeros(len(self.row), int(self.step.max()) + 1, *rows.shape[2:])
        segments[self.segment, self.step] = rows
        return segments

    def together(self, segments: Tensor) -> Tensor:
        """Undo `apart`: (M, longest segment, ...) → (B, n, ...)."""
        return segments[self.segment, self.step]
