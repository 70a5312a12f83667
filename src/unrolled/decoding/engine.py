"""What search needs of a model, and no more; NumPy in and out.

Both engines satisfy these protocols by structure, and so does an ensemble. Axes: R rows, V vocabulary, S source.
Rows are sources × k, source-major: row r belongs to source r // k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unrolled.next_symbol import FloatArray, IntArray, SamplingPolicy
from unrolled.text.vocabulary import BOS, PAD

__all__ = ["BANNED", "Engine", "Stepper"]

BANNED = (PAD, BOS)
"""What is never generated: padding and the start symbol."""


class Stepper(Protocol):
    """The decoding of one batch of sources, one symbol a row at a time.

    A new stepper has been fed BOS and has one row a source. What it answers is about the next symbol of each row.
    """

    @property
    def num_rows(self) -> int:
        """R, the number of rows at present."""

    def top_k(self, k: int, banned: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """Ids `(R, min(k, V))` and ln P of the k best symbols, best first, ties by lower id; banned ones are -inf."""

    def log_prob_of(self, ids: IntArray) -> FloatArray:
        """`(R,)`: ln P of one id a row."""

    def sample(self, policy: SamplingPolicy, uniforms: FloatArray) -> IntArray:
        """`(R,)`: one id a row, by inverting the filtered distribution at one uniform number a row."""

    def probabilities(self) -> FloatArray:
        """`(R, V)`: the whole distribution; used by ensembles only."""

    def attention(self) -> FloatArray:
        """`(R, S)`: weights over the source, from the last symbol fed; S may be padded."""

    def advance(self, tokens: IntArray) -> None:
        """Feed one symbol a row, `(R,)`."""

    def select(self, rows: IntArray, sources: IntArray | None = None) -> None:
        """Keep these rows, in this order (repeats allowed), and of the sources only these (none for all).

        Both are indices from before the call. Afterwards there are `len(sources) · k` rows, source-major, for any k.
        """


class Engine(Protocol):
    """A model as search sees it."""

    @property
    def vocabulary_size(self) -> int:
        """V, the number of target symbols, specials included."""

    def start(self, sources: Sequence[IntArray], *, need_attention: bool = False) -> Stepper:
        """Encode the sources (ids as the codec makes them) and feed BOS."""

    def log_probs(self, sources: Sequence[IntArray], targets: Sequence[IntArray]) -> list[FloatArray]:
        """One array a pair: ln P of each id of the target, its EOS included."""
