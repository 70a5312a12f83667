"""What an encoder gives to any decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from unrolled.reference.layer import BoolArray, FloatArray, IntArray
from unrolled.reference.states import mapped

__all__ = ["Encoded"]


class Encoded(NamedTuple):
    """A batch of encoded sources; its gradient has the same form.

    `output` (B, S, M), `mask` (B, S), `positions` (B, S) of the symbols (0 for features and padding), and `finals`: of
    each layer the last real state of all directions side by side, (B, M) arrays; empty for encoders without a final
    state, for which the mean of the output stands in.
    """

    output: FloatArray
    mask: BoolArray
    positions: IntArray
    finals: tuple[Any, ...]

    def summaries(self) -> tuple[Any, ...]:
        """`finals`, or in their place the mean of the output over its real positions; zero where there are none."""
        if self.finals:
            return self.finals
        return (((self._shares()[:, None] @ self.output)[:, 0],),)

    def summaries_backward(self, d_summaries: Sequence[Sequence[FloatArray]]) -> Encoded:
        """∂L/∂encoded, from that of `summaries`."""
        if not self.finals:
            return self._replace(output=self._shares()[..., None] * d_summaries[0][0][:, None])
        finals = (type(final)(*d_final) for final, d_final in zip(self.finals, d_summaries, strict=True))
        return self._replace(output=np.zeros_like(self.output), finals=tuple(finals))

    def zero_gradient(self) -> Encoded:
        """∂L/∂encoded before anything is added to it."""
        return mapped(np.zeros_like, self)._replace(mask=self.mask, positions=self.positions)

    def _shares(self) -> FloatArray:
        """Equal weights of the real positions that sum to 1, (B, S)."""
        real = self.mask.astype(self.output.dtype)
        shares: FloatArray = real / np.maximum(real.sum(axis=1, keepdims=True), 1.0)
        return shares
