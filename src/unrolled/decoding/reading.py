"""A language model that reads running text: ln P of each symbol after those before it, whatever the length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from unrolled.config import Config, LanguageModel, Text, carries_state
from unrolled.decoding.engine import Stepper
from unrolled.next_symbol import FloatArray, IntArray, check_log_probs
from unrolled.text.streams import text_batch
from unrolled.text.token_store import Tokens
from unrolled.text.vocabulary import PAD

__all__ = ["Context", "TextEngine", "text_log_probs"]

_WARM_UP = 256  # symbols that rows read before those that they predict, where a text is cut into rows
_MOST_LOGITS = 1 << 22  # of a call: rows × steps × vocabulary
_MOST_STEPS = 1024  # of a call


class TextEngine(Protocol):
    """A language model as reading and writing see it; NumPy in and out."""

    vocabulary_size: int

    def start(self, sources: Sequence[IntArray], *, need_attention: bool = False) -> Stepper:
        """Read prompts of one or more ids, one a row."""

    def stream_log_probs(
        self, inputs: IntArray, labels: IntArray, state: Any = None, *, reset: NDArray[np.bool_] | None = None
    ) -> tuple[FloatArray, Any]:
        """``ln P`` of labels (B, n) after inputs (B, n), and the state after them; None is the start."""


@dataclass(frozen=True)
class Context:
    """What a model reads before it predicts a symbol.

    Parameters
    ----------
    length : int, optional
        Symbols of a window; none where all that came before is carried in the state.
    num_rows : int
        With a carried state: parts of a long text that are read side by side, each after the 256 symbols before it.
        That is faster and nearly the same; 1 is exact.
    """

    length: int | None = None
    num_rows: int = 32

    @classmethod
    def of(cls, settings: Config) -> Self:
        """What the language model of a run reads: all text where it carries a state, else windows as in training."""
        assert isinstance(settings.data, Text)
        assert isinstance(settings.model, LanguageModel)
        return cls(None if carries_state(settings.model.decoder) else settings.data.context)

    @property
    def stride(self) -> int:
        """Symbols from the beginning of a window to that of the next: half a window."""
        assert self.length is not None
        return max(1, self.length // 2)

    def __str__(self) -> str:
        if self.length is None:
            parts = f"; parts of a long text begin {_WARM_UP} symbols early" if self.num_rows > 1 else ""
            return f"all symbols before, carried in the state{parts}"
        return (
            f"windows of {self.length} symbols, {self.stride} apart: at least {self.length - self.stride} before each"
        )


def text_log_probs(
    engine: TextEngine,
    tokens: Tokens,
    *,
    context: Context,
    should_stop: Callable[[], bool] = lambda: False,
) -> FloatArray | None:
    """Compute ln P of each symbol but the first, in nats.

    A carried state goes through the whole text. Windows overlap, and each symbol counts in the window in which
    most is before it.

    Parameters
    ----------
    engine : TextEngine
    tokens : id array (N,)
        A whole text; where documents are marked, each begins with `BOS`, before which the state returns to its start.
    context : Context
    should_stop : callable
        Asked between calls of the model; if it says so, `None` is returned.

    Returns
    -------
    float64 array (N − 1,)
        0 at `BOS`, which is never predicted.

    Raises
    ------
    DivergenceError
        If the model answers NaN.
    """
    if context.length is None:
        return _carried(engine, tokens, context.num_rows, should_stop)
    return _windowed(engine, tokens, context, should_stop)


def _carried(engine: TextEngine, tokens: Tokens, num_rows: int, should_stop: Callable[[], bool]) -> FloatArray | None:
    size = len(tokens) - 1
    num_rows = max(1, min(num_rows, size // (4 * _WARM_UP)))
    length = -(-size // num_rows)
    starts = np.minimum(length * np.arange(num_rows), size - length)  # the last row may overlap
    log_probs = np.zeros(size)
    state = None
    if num_rows > 1:
        _, state = _call(engine, tokens, np.maximum(starts - _WARM_UP, 0), _WARM_UP, None, is_fresh=False)
    chunk = min(_MOST_STEPS, max(1, _MOST_LOGITS // (num_rows * engine.vocabulary_size)))
    for first in range(0, length, chunk):
        if should_stop():
            return None
        steps = min(chunk, length - first)
        found, state = _call(engine, tokens, starts + first, steps, state, is_fresh=first == 0)
        for row, values in zip(starts[::-1] + first, found[::-1], strict=True):
            log_probs[row : row + steps] = values  # where rows overlap, the earlier one has read more
    return log_probs


def _windowed(
    engine: TextEngine, tokens: Tokens, context: Context, should_stop: Callable[[], bool]
) -> FloatArray | None:
    assert context.length is not None
    size = len(tokens) - 1
    length = min(context.length, size)
    starts = np.minimum(np.arange(0, size - length + context.stride, context.stride), size - length)
    log_probs = np.zeros(size)
    num_rows = max(1, _MOST_LOGITS // (length * engine.vocabulary_size))
    for last in range(len(starts), 0, -num_rows):  # backwards: where windows overlap, the earlier one has the last word
        if should_stop():
            return None
        rows = starts[max(last - num_rows, 0) : last]
        found, _ = _call(engine, tokens, rows, length, None, is_fresh=True)
        for row, values in zip(rows[::-1], found[::-1], strict=True):
            log_probs[row : row + length] = values
    return log_probs


def _call(
    engine: TextEngine, tokens: Tokens, starts: IntArray, length: int, state: Any, *, is_fresh: bool
) -> tuple[FloatArray, Any]:
    """One call on pieces of the text; where `is_fresh`, the row that begins the text begins at its start."""
    batch = text_batch(tokens, starts, length)
    reset = batch.reset
    if is_fresh and state is not None and starts[0] == 0:
        reset = np.zeros(batch.inputs.shape, dtype=np.bool_) if reset is None else reset.copy()
        reset[0, 0] = True
    found, state = engine.stream_log_probs(batch.inputs, batch.labels, state, reset=reset)
    check_log_probs(found)
    return np.where(batch.labels == PAD, 0.0, found), state
