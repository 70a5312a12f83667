import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unrolled.errors import DataError, VocabularyError
from unrolled.text import EOS, UNK, Vocabulary
from unrolled.text.subwords import BYTE_OF_LETTER, Subwords

KINDS = ["bpe", "unigram"]
TEXTS = [
    "a man in an orange hat starring at something .",
    "two men are at the stove preparing food , aren't they ?",
    "ein mann mit einem orangefarbenen hut , der etwas anstarrt .",
    "zwei männer stehen am herd und bereiten essen zu .",
    "男人们在准备食物 हिन्दी में 12 34 \U0001f468\u200d\U0001f469\u200d\U0001f467",
] * 3
ODD = [
    "",
    " ",
    "  ",
    " a",
    "a ",
    "a  b",
    "\ta\t b\n",
    "\u00a0x\u2028\u0085",
    "0xE2 \\xe2 \\\\ <s> Ġ ▁ <unk>",
    "e\u0301",
    "\0\x7f",
]
anything = st.text(st.characters(exclude_categories=("Cs",)), max_size=30) | st.text("ab é\\ \t男", max_size=30)


@pytest.fixture(scope="module", params=KINDS)
def subwords(request):
    return Subwords.train(TEXTS, kind=request.param, num_symbols=400)


@given(text=anything)
@settings(max_examples=150)
def test_every_text_comes_back_as_it_was(subwords, text):
    vocabulary = Vocabulary(subwords.symbols)
    row = subwords.encode([text, "x", text], vocabulary)
    assert row[0].tolist() == row[2].tolist()
    assert UNK not in row.values
    assert subwords.join(vocabulary.names(row[0])) == text
    assert vocabulary.names(row[0]) == subwords.cut(text)
    assert subwords.lengths([text]).tolist() == [len(row[0])]


@pytest.mark.parametrize("text", [*TEXTS[:5], *ODD])
def test_odd_texts_come_back_too(subwords, text):
    assert subwords.join(subwords.cut(text)) == text


def test_frequent_words_are_whole_and_the_first_word_is_like_the_others(subwords):
    learnt = Subwords.train(["mann mannes hand", "mann mann und"] * 50, kind=subwords.kind, num_symbols=262)
    assert learnt.cut("mann") == learnt.cut("ein mann")[-1:] == [" mann"]
    assert len(learnt.cut("mannmann")) > 1


def test_words_end_at_other_signs_but_not_at_marks():
    learnt = Subwords.train(["हिन्दी, हिन्दी, می\u200cخواهم; x1x1"] * 30, kind="bpe", num_symbols=400)
    assert learnt.cut("हिन्दी, می\u200cخواهم") == [" हिन्दी", ",", " می\u200cخواهم"]
    assert learnt.cut("x1x1") == [" x", "1", "x", "1"]


def test_there_are_as_many_symbols_as_wanted_or_as_the_texts_have(subwords):
    learnt = Subwords.train(TEXTS, kind=subwords.kind, num_symbols=270)
    assert len(learnt.symbols) == len(set(learnt.symbols)) == 270
    assert subwords.symbols == tuple(sorted(subwords.symbols))
    few = Subwords.train(["ab ab"], kind=subwords.kind, num_symbols=5000)
    assert 256 <= len(few.symbols) < 280
    assert few.join(few.cut("xyz \u20ac")) == "xyz \u20ac"


def test_counts_are_of_all_symbols(subwords):
    counts = subwords.count(["ein mann", "ein mann ein"])
    assert tuple(counts) == subwords.symbols
    assert counts["n"] == [*subwords.cut("ein mann"), *subwords.cut("ein mann ein")].count("n")
    assert sum(counts.values()) == subwords.lengths(["ein mann", "ein mann ein"]).sum()


@given(text=anything, num_symbols=st.integers(0, 8))
@settings(max_examples=150)
def test_head_is_a_beginning_of_few_symbols(subwords, text, num_symbols):
    head = subwords.head(text, num_symbols)
    assert text.startswith(head)
    assert subwords.lengths([head])[0] <= num_symbols
    if subwords.lengths([text])[0] <= num_symbols:
        assert head == text


def test_head_goes_as_far_as_it_may(subwords):
    cut = subwords.cut("ein mann mit hut")
    assert subwords.head("ein mann mit hut", 3) == "".join(cut[:3])[1:]


def test_symbols_that_are_no_text_become_replacement_characters(subwords):
    cut = subwords.cut("\u20ac")
    assert subwords.join([" \u00e4", "never a symbol"]).endswith("\ufffd")
    assert subwords.join(["\\xe2", " m"]) == "\ufffd m"
    assert "\\xe2" in subwords.symbols
    assert len(cut) > 1


def test_half_a_character_is_refused(subwords):
    with pytest.raises(DataError, match=r"U\+D83D, half of a surrogate pair"):
        subwords.encode(["a\ud83d"], Vocabulary(subwords.symbols))
    with pytest.raises(DataError, match="surrogate"):
        Subwords.train(["a\ud83d"], kind=subwords.kind, num_symbols=300)


def test_no_texts_and_many_texts(subwords, monkeypatch):
    vocabulary = Vocabulary(subwords.symbols)
    assert len(subwords.encode([], vocabulary)) == 0
    assert subwords.lengths([]).shape == (0,)
    whole = subwords.encode(TEXTS, vocabulary)
    monkeypatch.setattr("unrolled.text.units.CHUNK", 2)
    assert np.array_equal(subwords.encode(TEXTS, vocabulary).values, whole.values)
    assert np.array_equal(subwords.lengths(TEXTS), whole.lengths)
    assert whole.values.min() > EOS


def test_json_gives_the_same_back(subwords):
    again = Subwords.from_json(json.loads(json.dumps(subwords.to_json())))
    assert again == subwords
    assert [again.cut(text) for text in TEXTS] == [subwords.cut(text) for text in TEXTS]


def _damaged(content, key):
    return {
        "kind": {**content, "kind": "wordpiece"},
        "bytes": {**content, "pieces": [piece for piece in content["pieces"] if piece != "a"]},
        "twice": {**content, "pieces": [*content["pieces"], "a"]},
        "letter": {**content, "pieces": [*content["pieces"][:-1], "\u2603"]},
        "learnt": {name: value for name, value in content.items() if name not in ("merges", "scores")},
        "merges": {**content, "merges": [["a", "\u2603"]], "scores": [1.0]},
        "list": [],
        "none": None,
    }[key]


@pytest.mark.parametrize("key", ["kind", "bytes", "twice", "letter", "learnt", "merges", "list", "none"])
def test_other_json_is_refused(subwords, key):
    with pytest.raises(VocabularyError, match="subwords: expected a kind, pieces with all 256 bytes"):
        Subwords.from_json(_damaged(subwords.to_json(), key))


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_symbols_for_the_bytes_are_refused(kind):
    with pytest.raises(VocabularyError, match="expected 256 or more, got 255"):
        Subwords.train(["a"], kind=kind, num_symbols=255)
    assert len(Subwords.train(["a"], kind=kind, num_symbols=256).symbols) == len(BYTE_OF_LETTER)


def test_learning_is_the_same_in_every_process_and_forks_are_silent():
    code = (
        "import json, os, sys; from unrolled.text.subwords import Subwords;"
        f"texts = {TEXTS!r};"
        "learnt = [Subwords.train(texts, kind=kind, num_symbols=350) for kind in ('bpe', 'unigram')];"
        "child = os.fork();"
        "child or os._exit(len(learnt[0].cut('a mann')) == 0);"
        "os.waitpid(child, 0);"
        "assert 'TOKENIZERS_PARALLELISM' not in os.environ;"
        "print(json.dumps([item.to_json() for item in learnt]))"
    )
    written = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        environment.pop("TOKENIZERS_PARALLELISM", None)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        assert done.stderr == b""
        written.add(done.stdout)
    assert len(written) == 1
