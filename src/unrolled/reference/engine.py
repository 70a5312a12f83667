"""The NumPy engine of search: a batch of sources being decoded where PyTorch is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unrolled import next_symbol
from unrolled.errors import ShapeError
from unrolled.next_symbol import SamplingPolicy
from unrolled.reference.language_model import LanguageModel
from unrolled.reference.layer import BoolArray, FloatArray, IntArray
from unrolled.reference.ops import log_softmax
from unrolled.reference.seq2seq import Seq2Seq

__all__ = ["NumpyEngine", "NumpyStepper"]

_PAD, _BOS = 0, 1


class NumpyEngine:
    """Decoding with a NumPy model.

    Parameters
    ----------
    model : Seq2Seq or LanguageModel
    vocabulary_size : int
        Target symbols.
    """

    def __init__(self, model: Seq2Seq | LanguageModel, *, vocabulary_size: int) -> None:
        self.model = model
        self.vocabulary_size = vocabulary_size

    def start(self, sources: Sequence[IntArray], *, need_attention: bool = False) -> NumpyStepper:
        """Encode the sources and feed BOS to one row of each; a language model is fed its prompts."""
        memory, prefixes = self._read(sources)
        return NumpyStepper(self.model, memory, *_padded(prefixes), need_attention=need_attention)

    def log_probs(self, sources: Sequence[IntArray], targets: Sequence[IntArray]) -> list[FloatArray]:
        """``ln P(y_t | y_<t, x)`` of each target id, end symbol included, in nats; x a source or a prompt."""
        memory, prefixes = self._read(sources)
        ids, mask = _padded([np.append(*pair) for pair in zip(prefixes, targets, strict=True)])
        state = self.model.initial_state(memory, len(ids))
        chosen = _chosen(self.model.decode(ids[:, :-1], memory, state, mask=mask[:, 1:]).logits, ids[:, 1:])
        firsts = (len(prefix) - 1 for prefix in prefixes)
        return [row[first:][: len(y)] for row, first, y in zip(chosen, firsts, targets, strict=True)]

    def stream_log_probs(
        self, inputs: IntArray, labels: IntArray, state: Any = None, *, reset: BoolArray | None = None
    ) -> tuple[FloatArray, Any]:
        """``ln P`` of labels (B, n) after inputs (B, n), in nats, of a language model that reads on and on.

        Returns the log-probabilities (B, n) and the state after the chunk, which the next call is given; None stands
        for the start. `reset` (B, n) is True at inputs before which a row returns to its start.
        """
        state = self.model.initial_state(None, len(inputs)) if state is None else state
        output = self.model.decode(inputs, None, state, reset=reset)
        return _chosen(output.logits, labels), output.state

    def _read(self, sources: Sequence[IntArray]) -> tuple[Any, Sequence[IntArray]]:
        """Memory of the sources, and the tokens that a row of each is fed before the first prediction."""
        if isinstance(self.model, Seq2Seq):
            return self.model.encode(*_padded(sources)), [np.array([_BOS])] * len(sources)
        if not all(map(len, sources)):
            raise ShapeError("a language model goes on from at least one symbol, got an empty prompt")
        return None, sources


class NumpyStepper:
    """Rows of a batch of sources, each fed the same number of tokens after its prefix; see the engine protocol."""

    def __init__(
        self,
        model: Seq2Seq | LanguageModel,
        memory: Any,
        prefixes: IntArray,
        mask: BoolArray,
        *,
        need_attention: bool,
    ) -> None:
        self._model = model
        self._memory = memory
        self._state = model.initial_state(memory, len(prefixes))
        self._need_attention = need_attention
        self.num_rows = len(prefixes)
        self._feed(prefixes, mask)

    def advance(self, tokens: IntArray) -> None:
        """Feed one token a row."""
        self._feed(tokens[:, None])

    def _feed(self, tokens: IntArray, mask: BoolArray | None = None) -> None:
        """Feed tokens (R, n), right-padded where there is a mask."""
        output = self._model.decode(tokens, self._memory, self._state, mask=mask, need_attention=self._need_attention)
        rows, last = np.arange(len(tokens)), -1 if mask is None else mask.sum(axis=1) - 1
        self._state = output.state
        self._attention = None if output.attention is None else output.attention[rows, last]  # (R, S)
        self._log_probs = _log_probs(output.logits[rows, last])  # (R, V)

    def select(self, rows: IntArray, sources: IntArray | None = None) -> None:
        """Keep these sources, then reorder rows."""
        if sources is not None and self._memory is not None:
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
        weights: FloatArray = self._attention
        return weights


def _padded(rows: Sequence[IntArray]) -> tuple[IntArray, BoolArray]:
    """Right-padded ids (B, S) and their mask."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, _PAD, dtype=np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def _chosen(logits: FloatArray, labels: IntArray) -> FloatArray:
    """Log-probabilities of labels (B, n), of logits (B, n, V)."""
    chosen: FloatArray = np.take_along_axis(_log_probs(logits), labels[..., None], axis=2)[..., 0]
    return chosen


def _log_probs(logits: FloatArray) -> FloatArray:
    """Log-probabilities in float64, so that sums over long outputs keep their digits."""
    return log_softmax(logits.astype(np.float64))
