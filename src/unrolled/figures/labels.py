"""Symbols as axis labels: literal, visible, and in a font that has them.

A symbol may be a space, nothing at all, a lone combining mark, a formula sign or a character that no font on this
system draws. `visible` gives each a form that can be seen; `fit` finds the fonts and replaces what none of them has
by its code, such as U+4F60, with one warning that names the characters.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from matplotlib import font_manager
from matplotlib.axis import Axis
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

__all__ = ["Label", "fit", "phrase", "put", "visible", "write"]

EMPTY = "\N{EMPTY SET}"
SPACE = "\N{OPEN BOX}"
MARK_HOLDER = "\N{DOTTED CIRCLE}"
UNSEEN = ("Z", "Cc", "Cf", "Cs", "Co")  # separators, controls, format characters, surrogates, private use
MOST_NAMED = 10


class Label(NamedTuple):
    """A label's text and the font families that draw it."""

    text: str
    families: tuple[str, ...]


def visible(symbol: str) -> str:
    """Form of a symbol that can be seen.

    A space becomes ␣ and the empty symbol ∅; a leading combining mark stands on a dotted circle; characters without
    a shape of their own (controls, joiners, no-break space, lone surrogates) become their codes.
    """
    if not symbol:
        return EMPTY
    shown = "".join(_visible_character(character) for character in symbol)
    return MARK_HOLDER + shown if unicodedata.category(shown[0]).startswith("M") else shown


def phrase(text: str) -> str:
    """Form of a title or a name that can be seen, its words set apart by spaces."""
    return " ".join(visible(word) for word in text.split())


def _visible_character(character: str) -> str:
    if character == " ":
        return SPACE
    return code(character) if unicodedata.category(character).startswith(UNSEEN) else character


def code(character: str) -> str:
    """Code of a character as text: U+4F60."""
    return f"U+{ord(character):04X}"


def fit(*groups: Sequence[str]) -> list[list[Label]]:
    """Fonts for each text of each group; what no font has is replaced by its code.

    Warns
    -----
    UserWarning
        Once for all groups together, naming the characters that were replaced.
    """
    missing: dict[str, None] = {}  # an ordered set
    fitted = [[_fit(text, missing) for text in group] for group in groups]
    if missing:
        named = ", ".join(f"{character} {code(character)}" for character in list(missing)[:MOST_NAMED])
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        warnings.warn(
            f"no font on this system has {named}{more}; shown as codes; install a font that has them (e.g. Noto Sans)",
            stacklevel=3,  # the caller of the figure's function
        )
    return fitted


def _fit(text: str, missing: dict[str, None]) -> Label:
    families, absent = _choose_families(frozenset(text))
    missing.update(dict.fromkeys(character for character in text if character in absent))
    shown = "".join(code(character) if character in absent else character for character in text)
    return Label(shown.replace(f"{MARK_HOLDER}U+", "U+"), families)  # a code needs no circle to stand on


@lru_cache(maxsize=4096)
def _choose_families(characters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Fewest families for the characters, greedily, one that has them all first; and the characters that none has."""
    chosen: list[str] = []
    wanted = {ord(character) for character in characters}
    while wanted:
        best, most = None, 0
        for family in _families():
            drawn = len(wanted & _glyphs(family))
            if drawn > most:
                best, most = family, drawn
            if most == len(wanted):
                break
        if best is None:
            break
        chosen.append(best)
        wanted -= _glyphs(best)
    families = chosen or list(FontProperties().get_family())
    return tuple(families), frozenset(map(chr, wanted))


def _families() -> Iterator[str]:
    """Families to try: the current default, matplotlib's own, then the upright ones of this system."""
    yield from FontProperties().get_family()
    yield "DejaVu Sans"
    for font in font_manager.fontManager.ttflist:
        is_upright = font.style == "normal" and font.weight == 400 and font.stretch == "normal"
        if is_upright and not font.name.startswith("Last Resort"):  # whose glyphs are placeholders
            yield font.name


@lru_cache(maxsize=4096)
def _glyphs(family: str) -> frozenset[int]:
    """Code points that a family draws; none for fonts that are absent, damaged or made of bitmaps."""
    try:
        path = font_manager.findfont(FontProperties(family=[family]), fallback_to_default=False)
        font = font_manager.get_font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError, ValueError):
        return frozenset()


def write(text: Text, label: Label) -> None:
    """Make a text on the canvas show a label literally: `$` and backslashes are no formulas."""
    text.set(text=label.text, fontfamily=list(label.families), parse_math=False, usetex=False)


def put(axis: Axis, labels: Sequence[Label], *, size: float, every: int = 1) -> list[Text]:
    """Label the cells 0, 1, … of an axis, all or every few; the latter with their positions, counted from 1."""
    positions = range(every - 1, len(labels), every)
    shown = [labels[cell] for cell in positions]
    if every > 1:
        shown = [label._replace(text=f"{label.text} {cell + 1}") for label, cell in zip(shown, positions, strict=True)]
    axis.set_ticks(positions)
    axis.set_ticklabels([label.text for label in shown], fontsize=size)
    for tick, label in zip(axis.get_major_ticks(), shown, strict=True):
        write(tick.label1, label)  # on one side of the map
        write(tick.label2, label)  # on the other
    return list(axis.get_ticklabels())
