"""Labels: literal, visible, and in fonts that have them."""

import unicodedata
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from unrolled.figures import labels
from unrolled.figures.labels import Label


@pytest.mark.parametrize(
    ("symbol", "shown"),
    [
        ("a", "a"),
        ("$$", "$$"),
        ("\\frac", "\\frac"),
        (" ", "␣"),
        ("a b", "a␣b"),
        ("", "∅"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\u093f", "◌\u093f"),
        ("\u00a0", "U+00A0"),
        ("\t", "U+0009"),
        ("\u200d", "U+200D"),
        ("\ud83d", "U+D83D"),
        ("\ue000", "U+E000"),
        ("\x00\u0301", "U+0000\u0301"),
    ],
)
def test_every_symbol_has_a_form_that_can_be_seen(symbol: str, shown: str) -> None:
    assert labels.visible(symbol) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_no_unseen_character_is_left(symbol: str) -> None:
    shown = labels.visible(symbol)
    assert shown
    assert not unicodedata.category(shown[0]).startswith("M")
    assert not any(unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co") for character in shown)


def test_a_phrase_keeps_its_words_apart() -> None:
    assert labels.phrase(" two\t words\x00 ") == "two wordsU+0000"


def test_missing_characters_are_named_in_one_warning() -> None:
    absent = "\ufffe"  # never a character, so in no font
    with pytest.warns(UserWarning, match="no font on this system has \ufffe U\\+FFFE; shown as codes") as caught:
        (first,), (second,) = labels.fit([f"a{absent}"], [f"{absent}{absent}"])
    assert (first.text, second.text) == ("aU+FFFE", "U+FFFEU+FFFE")
    assert len(caught) == 1


def test_many_missing_characters_are_counted() -> None:
    absent = [chr(0xFDD0 + i) for i in range(13)]  # never characters
    with pytest.warns(UserWarning, match=r"U\+FDD9 and 3 more; shown as codes") as caught:
        labels.fit(absent)
    assert len(caught) == 1


def test_a_code_needs_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "_choose_families", lambda characters: (("DejaVu Sans",), frozenset("\u093f")))
    with pytest.warns(UserWarning, match=r"U\+093F"):
        [[label]] = labels.fit([labels.visible("\u093f")])
    assert label.text == "U+093F"


def test_the_chosen_fonts_have_the_characters() -> None:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        fitted = labels.fit(["a", "אב", "ز", "ʃ你", "한"])[0]
    for label in fitted:
        fonts = [get_font(findfont(FontProperties(family=[family]))) for family in label.families]
        assert set(map(ord, label.text)) <= set().union(*(font.get_charmap() for font in fonts))


def test_a_font_of_the_system_steps_in(monkeypatch: pytest.MonkeyPatch) -> None:
    glyphs = {"Base": {*map(ord, "ab")}, "Chinese": {*map(ord, "你")}, "Both": {*map(ord, "a你")}}
    monkeypatch.setattr(labels, "_families", lambda: iter(glyphs))
    monkeypatch.setattr(labels, "_glyphs", lambda family: frozenset(glyphs[family]))
    choose = labels._choose_families.__wrapped__
    assert choose(frozenset("ab")) == (("Base",), frozenset())
    assert choose(frozenset("你")) == (("Chinese",), frozenset())
    assert choose(frozenset("a你")) == (("Both",), frozenset())
    assert choose(frozenset("ab你")) == (("Base", "Chinese"), frozenset())
    assert choose(frozenset("你ζ")) == (("Chinese",), frozenset("ζ"))


def test_fonts_of_placeholders_are_never_asked() -> None:
    assert not any(name.startswith("Last Resort") for name in labels._families())
    assert labels._glyphs("no such font") == frozenset()


def test_every_few_cells_are_labelled_with_their_positions() -> None:
    axes = Figure().add_subplot()
    axes.set_xlim(-0.5, 11.5)
    texts = labels.put(axes.xaxis, [Label(symbol, ("DejaVu Sans",)) for symbol in "abcdefghijkl"], size=8, every=5)
    assert [text.get_text() for text in texts] == ["e 5", "j 10"]
    assert list(axes.get_xticks()) == [4, 9]
