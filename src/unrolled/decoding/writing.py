"""A language model that writes running text, symbol by symbol, as long as one likes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unrolled.decoding.engine import Stepper
from unrolled.decoding.reading import Context, TextEngine
from unrolled.errors import ConfigError
from unrolled.next_symbol import IntArray, SamplingPolicy, check_log_probs
from unrolled.text.vocabulary import EOS

__all__ = ["MOST_READ", "write"]

MOST_READ = 4096
"""Symbols of a prompt that a model with a carried state reads: its last ones."""


def write(
    engine: TextEngine, prompt: IntArray, *, policy: SamplingPolicy, max_tokens: int, seed: int, context: Context
) -> Iterator[int]:
    """Go on from a prompt; yields each id as soon as it is drawn, `EOS` last where the model ends by itself.

    Each symbol costs the same, however long the text is: a carried state is of one size, and a model with windows goes
    on from the second half of a window when it is full.

    Parameters
    ----------
    engine : TextEngine
    prompt : 1-d id array
        At least one; only its last symbols are read where it is longer than a window.
    policy : SamplingPolicy
        Temperature, top-k, top-p and ids that are never drawn.
    max_tokens : int
        Most ids that are drawn.
    seed : int
        0 or more. Symbol t is drawn with the t-th number of a generator that depends on it alone.
    context : Context

    Raises
    ------
    ConfigError
        If there is no prompt, or a limit makes no sense.
    DivergenceError
        If the model answers NaN.
    """
    if not len(prompt):
        raise ConfigError("generating needs a prompt: the model knows no line end or document to begin with")
    if max_tokens < 0 or seed < 0:
        raise ConfigError(f"expected max_tokens and seed of 0 or more, got {max_tokens} and {seed}")
    return _written(engine, prompt, policy, max_tokens, seed, context)


def _written(
    engine: TextEngine, prompt: IntArray, policy: SamplingPolicy, max_tokens: int, seed: int, context: Context
) -> Iterator[int]:
    generator = np.random.default_rng(seed)
    reader = _Reader(engine, np.asarray(prompt, dtype=np.int64), context)
    for place in range(max_tokens):
        drawn = reader.stepper.sample(policy, generator.random(1))
        check_log_probs(reader.stepper.log_prob_of(drawn))
        yield int(drawn[0])
        if drawn[0] == EOS or place == max_tokens - 1:
            return
        reader.read(drawn)


class _Reader:
    """A model that has read the text so far, or as much of it as its window holds."""

    def __init__(self, engine: TextEngine, prompt: IntArray, context: Context) -> None:
        self._engine = engine
        self._context = context
        self._window = prompt[-(context.length or MOST_READ) :].tolist()
        self.stepper = self._start()

    def read(self, symbol: IntArray) -> None:
        if self._context.length is None:
            self.stepper.advance(symbol)
            return
        self._window.append(int(symbol[0]))
        if len(self._window) <= self._context.length:
            self.stepper.advance(symbol)
        else:
            self._window = self._window[-self._context.stride :]
            self.stepper = self._start()

    def _start(self) -> Stepper:
        return self._engine.start([np.array(self._window)])
