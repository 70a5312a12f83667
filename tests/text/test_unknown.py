import pytest

from unrolled.config import Data, Side
from unrolled.text import Codec, UnknownSymbols


def unknown_of(sources, features=None, **settings):
    return UnknownSymbols.of_sources(Codec.fit(Data(**settings), sources, ["x"], features))


def test_summary_counts_and_places_each_symbol():
    unknown = unknown_of(["abcde"])
    assert not unknown
    assert unknown.summary() == unknown.casing() == ""
    for line, text in enumerate(["abc", "ab\u00e7", "\U0001f600"], start=1):
        unknown.add(text, line=line)
    assert unknown
    assert unknown.summary() == "2 symbols not seen in training: U+00E7 ç ×1 (line 2), U+1F600 ×1 (line 3)"
    assert unknown.casing() == ""


def test_most_frequent_first_and_the_first_line_stays():
    unknown = unknown_of(["a"])
    unknown.add("zya", line=5)
    unknown.add("yy", line=9)
    assert unknown.summary() == "2 symbols not seen in training: U+0079 y ×3 (line 5), U+007A z ×1 (line 5)"


def test_long_lists_are_shortened():
    unknown = unknown_of(["a"])
    unknown.add("bcdefghijklm", line=1)
    assert unknown.summary().startswith("12 symbols not seen")
    assert unknown.summary().endswith("U+006B k ×1 (line 1) and 2 more")


@pytest.mark.parametrize(("symbol", "shown"), [("\u0301", "U+0301 "), (" ", "U+0020 "), ("\u00ad", "U+00AD ")])
def test_symbols_that_cannot_be_seen_are_shown_by_code(symbol, shown):
    unknown = unknown_of(["a"])
    unknown.add(symbol, line=1)
    assert f"training: {shown}×1" in unknown.summary()


def test_normal_form_is_applied_first():
    unknown = unknown_of(["caf\u00e9"])
    unknown.add("cafe\u0301", line=1)
    assert not unknown


@pytest.mark.parametrize(
    ("trained", "given", "name", "other"), [("hello", "HeLLo", "upper", "lower"), ("HELLO", "hE", "lower", "upper")]
)
def test_casing_that_never_occurred_is_pointed_out(trained, given, name, other):
    unknown = unknown_of([trained])
    unknown.add(given, line=4)
    count = sum(symbol not in trained for symbol in given)
    assert unknown.casing() == (
        f"{count} symbol{'s' * (count > 1)} in {name} case that training had in {other} case only (for example"
        f" {'L' if name == 'upper' else 'h'!r} in line 4): bring the input to {other} case"
    )


def test_casing_of_whole_tokens():
    unknown = unknown_of(["the cat"], source=Side(units="space"))
    unknown.add("The dog", line=1)
    assert unknown.summary() == "2 symbols not seen in training: 'The' ×1 (line 1), 'dog' ×1 (line 1)"
    assert unknown.casing().startswith("1 symbol in upper case that training had in lower case only (for example 'The'")


def test_unknown_features_are_named():
    unknown = unknown_of(["go"], [("V", "PST")])
    unknown.add("go", line=3, features=("V", "FUT"))
    assert unknown.summary() == "1 symbol not seen in training: feature FUT ×1 (line 3)"


def test_bytes_are_never_unknown():
    unknown = unknown_of(["a"], source=Side(units="byte"))
    unknown.add("ж\U0001f600", line=1)
    assert not unknown
