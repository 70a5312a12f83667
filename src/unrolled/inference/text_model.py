"""A trained language model with its vocabulary: text in, text out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unrolled.decoding import BANNED, Context, SamplingPolicy, TextEngine, text_log_probs, write
from unrolled.decoding.writing import MOST_READ
from unrolled.errors import DataError
from unrolled.metrics.perplexity import bits_per_unit, perplexity
from unrolled.next_symbol import FloatArray
from unrolled.text import BOS, EOS, Corpus, TextCodec, TextTally, UnknownSymbols, normalise
from unrolled.text.text_report import unit_name
from unrolled.text.units import UNITS

__all__ = ["TextEvaluation", "TextModel"]


@dataclass(frozen=True, kw_only=True)
class TextEvaluation:
    """How surprised a language model is by a text.

    Attributes
    ----------
    name, file : str
        The model and the text.
    nats : float
        −Σ ln P of all labels.
    num_labels : int
        Symbols that were predicted.
    num_characters, num_bytes, num_words : int
        Of the text; words are cut at white space, and the end of a line is one.
    unit : str
        What symbols are.
    context : str
        What was read before each symbol.
    seconds : float
    notes : tuple of str
        What a person should know about the text.
    """

    name: str
    file: str
    nats: float
    num_labels: int
    num_characters: int
    num_bytes: int
    num_words: int
    unit: str
    context: str
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> float:
        """Nats a symbol."""
        return self.nats / self.num_labels

    @property
    def perplexity(self) -> float:
        """exp(nats / labels); compares only models with the same symbols."""
        return perplexity(self.nats, self.num_labels)

    @property
    def bits_per_character(self) -> float:
        """Compares models whatever their symbols are."""
        return bits_per_unit(self.nats, self.num_characters)

    @property
    def bits_per_byte(self) -> float:
        """Of the UTF-8 form."""
        return bits_per_unit(self.nats, self.num_bytes)

    @property
    def word_perplexity(self) -> float:
        """exp(nats / words)."""
        return perplexity(self.nats, self.num_words)

    def lines(self) -> list[str]:
        """The report as text."""
        return [
            f"{self.name} on {self.file}: {self.num_labels:,} {self.unit}s predicted in {self.seconds:.1f} s",
            f"perplexity per {self.unit}  {self.perplexity:.4f}  ({self.loss:.4f} nats)",
            f"bits per character    {self.bits_per_character:.4f}  (per byte {self.bits_per_byte:.4f})",
            f"perplexity per word   {self.word_perplexity:.2f}  ({self.num_words:,} words, line ends counted)",
            f"context: {self.context}",
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        figures = ("loss", "perplexity", "bits_per_character", "bits_per_byte", "word_perplexity")
        return {**asdict(self), **{name: getattr(self, name) for name in figures}}


class TextModel:
    """A language model that is ready to use; `unrolled.load` makes one.

    Parameters
    ----------
    engine : TextEngine
    codec : TextCodec
        Its text side.
    context : Context
        What it reads before it predicts a symbol.
    name : str
        What reports call it.
    """

    def __init__(self, engine: TextEngine, codec: TextCodec, context: Context, *, name: str) -> None:
        self.engine = engine
        self.codec = codec
        self.context = context
        self.name = name

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Go on from a prompt; the new text alone.

        Parameters
        ----------
        prompt : str
            Read as the beginning of a line, or of a document where these are marked; symbols that the model does not
            know are read as unknown.
        max_tokens : int
            Most symbols of new text; it ends earlier where a document does.
        temperature : float
            Below 1 for more probable text, 0 for always the most probable symbol.
        top_k : int, optional
            Draw among so many most probable symbols.
        top_p : float
            Draw among the most probable symbols whose probabilities reach this sum.
        seed : int
            The same seed gives the same text.

        Raises
        ------
        ConfigError
            If a number makes no sense, or the model needs a prompt and there is none.
        """
        return "".join(
            self.stream(prompt, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        )

    def stream(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Iterator[str]:
        """Do as `generate` does, but yield each piece of text as soon as it is drawn."""
        banned = BANNED if self.codec.text.document_end is not None else (*BANNED, EOS)
        policy = SamplingPolicy(
            temperature=temperature or 1.0, top_k=top_k if temperature else 1, top_p=top_p, banned=banned
        )
        read = self.codec.encode(prompt)
        given = np.append(self.codec.start, read)
        ids = write(self.engine, given, policy=policy, max_tokens=max_tokens, seed=seed, context=self.context)
        return islice(self.codec.pieces(chain(read, ids)), len(read), None)

    def inspect(self, lines: Sequence[str]) -> list[str]:
        """What is unusual about lines of text: the symbols that never occurred in training, in one line."""
        unknown = UnknownSymbols.of_text(self.codec)
        for number, line in enumerate(lines, start=1):
            unknown.add(line, line=number)
        return self._unknown_notes(unknown)

    def inspect_prompt(self, prompt: str) -> list[str]:
        """What is unusual about a prompt, one line each: unknown symbols, and more symbols than are read."""
        size, most = len(self.codec.encode(prompt)), self.context.length or MOST_READ
        over_long = [f"the prompt has {size:,} symbols; its last {most:,} are read"] if size > most else []
        return self.inspect(prompt.split("\n")) + over_long

    def score(self, lines: Sequence[str]) -> list[float]:
        """Compute ln P of each line, its end included, after all lines before it, in nats.

        Where documents are marked, each line is a document. A carried state goes through the text once.
        """
        form, is_marked = self.codec.text.normal_form, self.codec.text.document_end is not None
        texts = [normalise(line, form) + ("" if is_marked else "\n") for line in lines]
        rows = self.codec.framed(self.codec.symbols(texts))
        sums = np.append(0.0, np.cumsum(self._log_probs(rows.values, replace(self.context, num_rows=1))))[rows.offsets]
        return [float(value) for value in np.diff(sums)]

    def evaluate(self, test: str | Path) -> TextEvaluation:
        """Measure the surprise at a text: a file, plain or gzip, or a folder of files.

        Raises
        ------
        DataError
            If it cannot be used, or there is nothing to predict in it.
        """
        start = time.perf_counter()
        corpus, tally = Corpus(test, self.codec.text), TextTally(self.codec)
        blocks, num_bytes, num_words = [np.empty(0, dtype=np.int32)], 0, 0
        for block in corpus.blocks():
            blocks.append(tally.encode(block))
            num_bytes, num_words = num_bytes + len(block.encode()), num_words + len(UNITS["word"].cut(block))
        tokens = np.concatenate(blocks)
        num_labels = int((self.codec.begun(tokens)[1:] != BOS).sum())
        if not num_labels:
            raise DataError("holds nothing to predict; expected running text", file=test)
        return TextEvaluation(
            name=self.name,
            file=str(test),
            nats=-float(self._log_probs(tokens, self.context).sum()),
            num_labels=num_labels,
            num_characters=tally.num_characters,
            num_bytes=num_bytes,
            num_words=num_words,
            unit=unit_name(self.codec.text.units),
            context=str(self.context),
            seconds=time.perf_counter() - start,
            notes=tuple(corpus.notes() + self._unknown_notes(tally.unknown)),
        )

    def _unknown_notes(self, unknown: UnknownSymbols) -> list[str]:
        return [f"{unknown.summary()}; read as unknown"] if unknown else []

    def _log_probs(self, tokens: NDArray[Any], context: Context) -> FloatArray:
        """Of each symbol of a whole text; 0 for those that nothing predicts."""
        begun = self.codec.begun(tokens)
        found = np.zeros(0) if len(begun) < 2 else text_log_probs(self.engine, begun, context=context)
        assert found is not None, "nothing asked it to stop"
        return np.append(np.zeros(len(tokens) - len(found)), found)
