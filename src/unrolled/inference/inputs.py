"""What a person should know about the input of a prediction: one summary, however many lines there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unrolled.errors import VocabularyError
from unrolled.text import EOS, Codec, Ragged, UnknownSymbols

__all__ = ["InputNotes", "symbol_lengths"]

MOST_LINES = 5


def symbol_lengths(encoded: Ragged) -> NDArray[np.int64]:
    """Symbols of each encoded source, end symbol included; features do not count."""
    lengths: NDArray[np.int64] = np.flatnonzero(encoded.values == EOS) - encoded.offsets[:-1] + 1
    return lengths


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_LINES]))
    more = f" and {len(numbers) - MOST_LINES} more" if len(numbers) > MOST_LINES else ""
    return f"line{'s' * (len(numbers) > 1)} {shown}{more}"


class InputNotes:
    """Gathered over all lines of an input, which may come in parts.

    Parameters
    ----------
    codec : Codec
        Of the model.
    longest : int
        Length of the longest source that is nothing unusual, in symbols, end symbol included.
    limit : int, optional
        Length of the longest source that the model can read, counted alike.
    """

    def __init__(self, codec: Codec, *, longest: int, limit: int | None = None) -> None:
        self.codec = codec
        self.unknown = UnknownSymbols.of_sources(codec)
        self.longest = longest
        self.limit = limit
        self.over_long: list[int] = []
        """Lines longer than `longest`."""
        self.unreadable: list[int] = []
        """Lines longer than `limit`."""
        self.num_lines = 0

    def add(
        self,
        sources: Sequence[str],
        features: Sequence[Sequence[str]] | None,
        encoded: Ragged,
        *,
        lines: Sequence[int] | None = None,
    ) -> None:
        """Look at more lines.

        Parameters
        ----------
        sources, features
            Texts.
        encoded : Ragged
            Their ids.
        lines : sequence of int, optional
            Their line numbers; none where each source is the next line.
        """
        numbers = range(self.num_lines + 1, self.num_lines + 1 + len(sources)) if lines is None else lines
        for source, names, line in zip(sources, features or [()] * len(sources), numbers, strict=True):
            if not self.codec.is_blank(source):  # which the model does not see
                self.unknown.add(source, line=line, features=names)
        lengths = symbol_lengths(encoded)
        is_unreadable = lengths > (self.limit or np.inf)
        self.unreadable += [numbers[row] for row in np.flatnonzero(is_unreadable).tolist()]
        is_long = (lengths > self.longest) & ~is_unreadable
        self.over_long += [numbers[row] for row in np.flatnonzero(is_long).tolist()]
        self.num_lines += len(sources)

    def messages(self) -> Iterator[str]:
        """One line for each kind of surprise; nothing for ordinary input."""
        if not self.num_lines:
            yield "the input is empty"
        if self.unknown:
            yield f"{self.unknown.summary()}; read as unknown"
        if self.unknown.casing():
            yield self.unknown.casing()
        if self.over_long:
            yield (
                f"longer than anything in training ({self.longest} symbols, end symbol included), so results may be"
                f" poor: {_lines(self.over_long)}"
            )
        if self.unreadable:
            yield (
                f"longer than the model can read ({self.limit} symbols, end symbol included), so answered by nothing:"
                f" {_lines(self.unreadable)}"
            )

    def refuse_unknown(self) -> None:
        """Raise `VocabularyError` if any symbol or feature never occurred in training."""
        if self.unknown:
            raise VocabularyError(self.unknown.summary())
