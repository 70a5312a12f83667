"""Unicode normal forms: one letter, one spelling.

`é` may be written as one code point (NFC) or as `e` and a combining accent (NFD). A model sees code points, so the
form of its training data has to be applied to everything that it reads later; `Data.normal_form` stores it.
"""

from __future__ import annotations

import unicodedata
from typing import Literal

__all__ = ["NormalForm", "normalise", "recompose"]

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD", "none"]


def normalise(text: str, form: NormalForm) -> str:
    """Bring `text` into a Unicode normal form; `none` leaves it as it is."""
    return text if form == "none" else unicodedata.normalize(form, text)


def recompose(text: str, form: NormalForm) -> str:
    """Spell a text of the given form in composed letters, as people expect to read it: NFC, or NFKC for `NFKD`.

    Needed for the composed forms too: a model may well write a letter and its accent as two symbols.
    """
    return text if form == "none" else unicodedata.normalize("NFC", normalise(text, form))
