"""Settings of running text."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unrolled.config.base import Positive, Settings

__all__ = ["Text"]


class Text(Settings):
    """How running text is cut into symbols, and how much of it a language model sees at once."""

    type: Literal["text"] = "text"
    units: Literal["character", "byte", "word", "bpe", "unigram"] = "character"
    """One symbol a code point, a byte of the UTF-8 form, a word between (ASCII) white space, or a subword learnt from
    the training text."""
    num_subwords: Annotated[int, Field(ge=256)] = 8000
    """Of `units="bpe"` and `units="unigram"`: how many are learnt, all 256 bytes included."""
    line_ends: bool = True
    """Of `units="word"` alone: whether the end of a line is a symbol of its own."""
    min_count: Positive = 1
    """Symbols seen less often in the training text become the unknown symbol."""
    max_symbols: Positive | None = None
    """Largest number of symbols kept (most frequent first, ties by code point); none for all."""
    context: Annotated[int, Field(ge=2)] = 128
    """Symbols that are trained on at once: the length of a window, or of a chunk whose state is carried to the next."""
    document_end: Annotated[str, Field(min_length=1)] | None = None
    """Text that ends a document, such as `"\\n"` (each line is one) or `"<|endoftext|>"`; none for one long stream."""
    encoding: str = "utf-8"
    """Character encoding of the text files."""
    normal_form: Literal["NFC", "NFD", "NFKC", "NFKD", "none"] = "NFC"
    """Unicode normal form of what the model reads and writes."""
    valid_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of the text, at its end, that is held out when no valid file is given."""

    @model_validator(mode="after")
    def _options_fit_the_units(self) -> Self:
        for option, units in (("num_subwords", ("bpe", "unigram")), ("line_ends", ("word",))):
            if self.units not in units and getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option} is an option of units={' and units='.join(units)}, got units={self.units}")
        if self.units not in ("character", "word") and (self.min_count > 1 or self.max_symbols is not None):
            raise ValueError(f"units={self.units} keeps all its symbols: leave min_count and max_symbols unset")
        return self
