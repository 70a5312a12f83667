"""The NumPy engine of search: a batch of sources being decoded where PyTorch is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unrolled import next_symbol
from unrolled.next_symbol import SamplingPolicy
from unrolled.reference.layer import BoolArray, FloatArray, IntArray
from unrolled.reference.ops import log_softmax
from unrolled.reference.seq2seq import Seq2Seq

__all__ = ["NumpyEngine", "NumpyStepper"]

_PAD, _BOS = 0, 1


class NumpyEngine:
    """Decoding with a NumPy model.

    Parameters
    ----------
    model : Seq2Seq
    vocabulary_size : int
        Target symbols.
    """

    def __init__(self, model: Seq2Seq, *, vocabulary_size: int) -> None:
        self.model = model
        self.vocabulary_size = vocabulary_size

    def start(self, sources: Sequence[IntArray], *, need_attention: bool = False) -> NumpyStepper:
        """Encode the sources and feed BOS to one row of each."""
        memory = self.model.encode(*_padded(sources))
        return NumpyStepper(self.model, memory, num_rows=len(sources), need_attention=need_attention)

    def log_probs(self, sources: Sequence[IntArray], targets: Sequence[IntArray]) -> list[FloatArray]:
        """``ln P(y_t | y_<t, x)`` of each target id, end symbol included, in nats."""
        labels, mask = _padded(targets)
        memory = self.model.encode(*_padded(sources))
        inputs = np.concatenate([np.full_like(labels[:, :1], _BOS), labels[:, :-1]], axis=1)
        logits = self.model.decode(inputs, memory, self.model.initial_state(memory, len(targets)), mask=mask).logits
        chosen = np.take_along_axis(_log_probs(logits), labels[..., None], axis=2)[..., 0]
        return [row[: len(target)] for row, target in zip(chosen, targets, strict=True)]


class NumpyStepper:
    """Rows of a batch of sources, each fed the same number of tokens; see the engine protocol."""

    def __init__(self, model: Seq2Seq, memory: Any, *, num_rows: int, need_attention: bool) -> None:
        self._model = model
        self._memory = memory
        self._state = model.initial_state(memory, num_rows)
        self._need_attention = need_attention
        self.num_rows = num_rows
        self.advance(np.full(num_rows, _BOS))

    def advance(self, tokens: IntArray) -> None:
        """Feed one token a row."""
        output = self._model.decode(tokens[:, None], self._memory, self._state, need_attention=self._need_attention)
        self._state = output.state
        self._attention = output.attention
        self._log_probs = _log_probs(output.logits[:, -1])  # (R, V)

    def select(self, rows: IntArray, sources: IntArray | None = None) -> None:
        """Keep these sources, then reorder rows."""
        if sources is not None:
            self._memory = self._memory.select(sources)
        self._state = self._state.select(rows)
        self._log_probs = self._log_probs[rows]
        if self._attention is not None:
            self._attention = self._attention[rows]
        self.num_rows = len(rows)

    def top_k(self, k: int, banned: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """Best k next symbols of each row and their log-probabilities, (R, k); ties by lower id."""
        return next_symbol.top_k(self._log_probs, k, banned=banned)

    def log_prob_of(self, ids: IntArray) -> FloatArray:
        """``ln P`` of one symbol a row, (R,)."""
        return self._log_probs[np.arange(self.num_rows), ids]

    def sample(self, policy: SamplingPolicy, uniforms: FloatArray) -> IntArray:
        """One symbol a row, by inverting the filtered distribution at one uniform number a row."""
        return next_symbol.draw(next_symbol.filtered_probabilities(self._log_probs, policy), uniforms)

    def probabilities(self) -> FloatArray:
        """P of every next symbol, (R, V)."""
        probabilities: FloatArray = np.exp(self._log_probs)
        return probabilities

    def attention(self) -> FloatArray:
        """Weights of the last token fed over the source, (R, S)."""
        assert self._attention is not None, "attention was not asked for at the start"
        return self._attention[:, -1]


def _padded(rows: Sequence[IntArray]) -> tuple[IntArray, BoolArray]:
    """Right-padded ids (B, S) and their mask."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, _PAD, dtype=np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def _log_probs(logits: FloatArray) -> FloatArray:
    """Log-probabilities in float64, so that sums over long outputs keep their digits."""
    return log_softmax(logits.astype(np.float64))
