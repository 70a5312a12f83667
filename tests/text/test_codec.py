import json
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.config import Data, Side
from unrolled.errors import ConfigError, DataError, VocabularyError
from unrolled.text import BOS, EOS, PAD, UNK, Codec, Vocabulary, normalise, recompose

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
UNITS = ["character", "space", "byte"]


def codec_of(sources, targets, features=None, **settings):
    return Codec.fit(Data(**settings), sources, targets, features)


def sides(units, **limits):
    return {"source": Side(units=units, **limits), "target": Side(units=units, **limits)}


# --- vocabularies ----------------------------------------------------------------------------------------------------


def test_specials_come_first_then_symbols_by_code_point():
    codec = codec_of(["zz", "é a"], ["b"])
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert codec.source.symbols == (" ", "a", "z", "é")
    assert codec.encode_source("z?").tolist() == [6, UNK, EOS]
    assert (len(codec.source), codec.source.num_features, codec.source.first_feature) == (8, 0, 8)


def test_limit_keeps_the_most_frequent_and_cuts_ties_by_code_point():
    counts = {"d": 2, "c": 2, "b": 2, "a": 1, "z": 9}
    assert Vocabulary.from_counts(counts, max_symbols=3).symbols == ("b", "c", "z")
    assert Vocabulary.from_counts(counts, min_count=2).symbols == ("b", "c", "d", "z")
    assert Vocabulary.from_counts(counts, min_count=2, max_symbols=1).symbols == ("z",)


@pytest.mark.parametrize("units", ["character", "space"])
def test_settings_of_a_side_limit_its_vocabulary(units):
    codec = codec_of(["a a b", "a c b"], ["b b a"], source=Side(units=units, min_count=2), target=Side(max_symbols=1))
    assert [symbol for symbol in codec.source.symbols if symbol != " "] == ["a", "b"]
    assert len(codec.target.symbols) == 1


def test_hash_seed_and_line_order_change_nothing():
    code = (
        "import json, sys; from unrolled.config import Data, Side; from unrolled.text import Codec;"
        "side = Side(units='space', max_symbols=5);"
        "texts = ['b a', 'd c', 'f e', 'g h', 'a b c'][:: int(sys.argv[1])];"
        "data = Data(columns=('source', 'target', 'features'), source=side, target=side);"
        "features = [('V', 'PST')] * 2 + [('N', 'ACC', 'PL')] * 3;"
        "print(json.dumps(Codec.fit(data, texts, texts, features).to_json()))"
    )
    written = set()
    for seed, order in (("1", "1"), ("2", "1"), ("3", "-1")):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        written.add(subprocess.run([sys.executable, "-c", code, order], env=environment, capture_output=True).stdout)
    assert len(written) == 1
    assert json.loads(written.pop())["source"]["symbols"] == ["a", "b", "c", "d", "e"]


@given(st.sets(st.text(min_size=1, max_size=3).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))))
def test_vocabulary_survives_json(symbols):
    symbols |= {" ", "\n", "\u0301", "\u2028", "<s>", "</s>", '"', "\\"}
    for features in (None, (), ("V", "ARG(NOM;3)")):
        vocabulary = Vocabulary(tuple(sorted(symbols)), features)
        assert Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary


@pytest.mark.parametrize(
    "content",
    [None, [], {}, {"symbols": ["a"]}, {"symbols": "ab", "features": None}, {"symbols": [1], "features": None}],
)
def test_foreign_vocabulary_is_refused(content):
    with pytest.raises(VocabularyError, match="vocabulary: expected"):
        Vocabulary.from_json(content)


def test_repeated_symbol_is_refused():
    with pytest.raises(VocabularyError, match="holds the symbol 'a' twice"):
        Vocabulary(("a", "b", "a"))
    with pytest.raises(VocabularyError, match="holds the feature 'V' twice"):
        Vocabulary(("a",), ("V", "V"))


# --- features --------------------------------------------------------------------------------------------------------


def test_features_follow_the_end_symbol():
    codec = codec_of(["ab"], ["c"], [("V", "PST"), ("V",)])
    vocabulary = codec.source
    assert (vocabulary.features, vocabulary.num_features, vocabulary.first_feature) == (("PST", "V"), 3, 6)
    assert codec.encode_source("ba", ("V", "NEW", "PST")).tolist() == [5, 4, EOS, 8, 6, 7]
    assert codec.source_symbols(codec.encode_source("a", ("V", "NEW"))) == ["a", "</s>", "V", "<unk>"]
    assert codec.encode_source("a").tolist() == [4, EOS]
    assert len(codec.source) == 9


def test_features_of_a_model_without_them_are_ignored():
    assert codec_of(["ab"], ["c"]).encode_source("a", ("V",)).tolist() == [4, EOS]


def test_a_feature_named_like_a_symbol_is_another_id():
    codec = codec_of(["ab"], ["c"], [("a",)])
    assert codec.encode_source("a", ("a",)).tolist() == [4, EOS, 7]


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD", "none"])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_character_texts_come_back_composed(form, text):
    codec = codec_of([text], [text], normal_form=form)
    ids = codec.encode_target(text)
    assert codec.decode_target(ids) == recompose(normalise(text, form), form)
    assert ids[-1] == EOS
    assert UNK not in ids
    assert codec.source_symbols(codec.encode_source(text))[:-1] == list(normalise(text, form))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_texts_come_back_even_if_never_seen(text):
    codec = codec_of(["a"], ["a"], **sides("byte"))
    assert codec.decode_target(codec.encode_target(text)) == unicodedata.normalize("NFC", text)
    assert len(codec.target) == 260


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_space_texts_come_back_with_single_spaces(text):
    codec = codec_of([text], [text], **sides("space"), normal_form="none")
    assert codec.decode_target(codec.encode_target(text)) == " ".join(part for part in text.split(" ") if part)


@pytest.mark.parametrize("units", UNITS)
def test_many_are_encoded_as_one_by_one(units):
    texts = ["b a", "", " a  c ", "é\u0301ж", FAMILY + " x", "a\u00a0b \u2028"]
    codec = codec_of(texts[:3], texts[:3], **sides(units))
    many = codec.encode_targets(texts)
    assert [many[row].tolist() for row in range(len(texts))] == [codec.encode_target(text).tolist() for text in texts]
    assert many.values.dtype == np.int32


def test_korean_is_read_in_letters_and_written_in_syllables():
    codec = codec_of(["한국"], ["한국"], normal_form="NFD")
    assert codec.encode_target("한국").size == 7
    assert codec.decode_target(codec.encode_target("한국")) == "한국"


def test_both_spellings_of_a_letter_are_one():
    codec = codec_of(["caf\u00e9"], ["caf\u00e9"])
    assert codec.encode_source("cafe\u0301").tolist() == codec.encode_source("caf\u00e9").tolist()
    assert "\u0301" not in codec.source.symbols


def test_family_emoji_is_five_code_points():
    codec = codec_of([FAMILY + " x"], [FAMILY + " x"])
    assert codec.encode_target(FAMILY).size == 6
    assert codec.decode_target(codec.encode_target(FAMILY + " x")) == FAMILY + " x"


def test_spaces_are_kept_exactly():
    sources, targets = ["a b", " lead", "a  b"], ["x y", "t ", "q"]
    codec = codec_of(sources, targets)
    codec = Codec.from_json(json.loads(json.dumps(codec.to_json())))
    assert " " in codec.source.symbols
    assert [codec.decode_target(codec.encode_target(target)) for target in targets] == targets
    assert codec.source_symbols(codec.encode_source("a  b")) == ["a", " ", " ", "b", "</s>"]


def test_specials_are_never_text():
    codec = codec_of(["<s></s>"], ["a<pad>"])
    assert codec.decode_target([BOS, *codec.encode_target("a"), PAD, PAD]) == "a"
    assert codec.decode_target([*codec.encode_target("a"), *codec.encode_target("a")]) == "a"
    assert codec.decode_target([4, UNK, EOS]) == codec.target.symbols[0] + "\ufffd"
    assert codec_of(["a"], ["a"], **sides("space")).decode_target([4, UNK, 4]) == "a \ufffd a"
    assert codec.decode_target([EOS]) == codec.decode_target([]) == ""


def test_broken_bytes_are_replaced():
    codec = codec_of(["a"], ["a"], **sides("byte"))
    ids = codec.encode_target("aé\u20ac").tolist()
    assert codec.decode_target(ids[:2] + ids[:1]) == "a\ufffda"
    assert codec.decode_target(ids[:5]) == "aé\ufffd"
    assert codec.decode_target([UNK]) == "\ufffd"


def test_bytes_have_names_to_show():
    codec = codec_of(["a"], ["a"], **sides("byte"))
    assert codec.target_symbols(codec.encode_target("a é~\x7f")) == ["a", " ", "0xC3", "0xA9", "~", "0x7F", "</s>"]


@pytest.mark.parametrize("limit", [{"min_count": 2}, {"max_symbols": 9}])
def test_bytes_cannot_be_limited(limit):
    with pytest.raises(ConfigError, match="units=byte keeps all 256 bytes"):
        codec_of(["a"], ["a"], **sides("byte", **limit))


def test_id_outside_the_vocabulary_is_an_error():
    with pytest.raises(VocabularyError, match="id 5 is outside the vocabulary of 5"):
        codec_of(["a"], ["a"]).decode_target([5])
    with pytest.raises(VocabularyError, match="id -1 is outside"):
        codec_of(["a"], ["a"]).decode_target([-1])


@pytest.mark.parametrize("units", ["character", "byte"])
def test_half_a_surrogate_pair_is_refused_with_its_place(units):
    codec = codec_of(["a"], ["a"], **sides(units))
    with pytest.raises(DataError, match=r"character 2 is U\+D83D, half of a surrogate pair"):
        codec.encode_source("a\ud83d")


def test_blank_input_depends_on_the_vocabulary():
    assert codec_of(["ab"], ["a"]).is_blank("   ")
    assert not codec_of(["a b"], ["a"]).is_blank("   ")
    assert codec_of(["a b"], ["a"]).is_blank("")
    assert codec_of(["a b"], ["a"], **sides("space")).is_blank("   ")
    assert not codec_of(["ab"], ["a"]).is_blank("?")


@pytest.mark.parametrize("units", UNITS)
def test_codec_survives_json(units):
    codec = codec_of(["a b"], ["c é"], [("V",)], **sides(units), normal_form="NFD")
    again = Codec.from_json(json.loads(json.dumps(codec.to_json())))
    assert again == codec
    assert again.encode_source("b a", ("V",)).tolist() == codec.encode_source("b a", ("V",)).tolist()


@pytest.mark.parametrize("content", [None, {}, {"data": {"form": "NFC"}, "source": {}, "target": {}}])
def test_foreign_codec_is_refused(content):
    with pytest.raises(VocabularyError, match=r"^codec: "):
        Codec.from_json(content)


# --- subwords and shared vocabularies --------------------------------------------------------------------------------

SENTENCES = ["a small cat sees a small dog", "the dog sees the cat", "a cat", "cats and dogs"] * 5
SAETZE = ["eine kleine katze sieht einen hund", "der hund sieht die katze", "eine katze", "katzen und hunde"] * 5
SUBWORDS = Side(units="bpe", num_subwords=270)


def test_subwords_are_learnt_with_the_vocabulary():
    codec = codec_of(SENTENCES, SAETZE, source=SUBWORDS, target=Side(units="unigram", num_subwords=260))
    assert (len(codec.source.symbols), len(codec.target.symbols)) == (270, 260)
    assert codec.source_symbols(codec.encode_source("the cat")) == [" the", " cat", "</s>"]
    assert codec.decode_target(codec.encode_target("ein  Hünd \U0001f600")) == "ein  Hünd \U0001f600"
    again = Codec.from_json(json.loads(json.dumps(codec.to_json())))
    assert again == codec
    assert again.encode_target("eine katze").tolist() == codec.encode_target("eine katze").tolist()


def test_separate_subwords_are_learnt_from_their_own_side():
    codec = codec_of(SENTENCES, SAETZE, source=SUBWORDS, target=SUBWORDS)
    assert " katze" in codec.target.ids
    assert " katze" not in codec.source.ids


@pytest.mark.parametrize("units", ["character", "space", "byte", "bpe", "unigram"])
def test_a_shared_vocabulary_has_the_symbols_of_both_sides(units):
    codec = codec_of(["ab cd", "ab"], ["xy z", "zé"], shared_vocabulary=True, **sides(units))
    assert codec.source == codec.target
    assert codec.encode_source("zé ab").tolist() == codec.encode_target("zé ab").tolist()
    assert (UNK in codec.encode_source("é")) == (units == "space")
    again = Codec.from_json(json.loads(json.dumps(codec.to_json())))
    assert again == codec
    assert again.learnt.source is again.learnt.target


def test_features_follow_the_symbols_of_a_shared_vocabulary():
    codec = codec_of(["ab"], ["c"], [("V", "PST")], columns=("source", "target", "features"), shared_vocabulary=True)
    assert codec.source.symbols == codec.target.symbols == ("a", "b", "c")
    assert codec.encode_source("c", ["PST"]).tolist() == [6, EOS, 8]
    assert codec.target.features is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": {"units": "bpe", "min_count": 2}}, "units=bpe keeps what it learns: set num_subwords, not"),
        ({"source": {"units": "unigram", "max_symbols": 9}}, "units=unigram keeps what it learns"),
        ({"source": {"units": "space", "num_subwords": 500}}, "num_subwords is an option of units=bpe and"),
        ({"source": {"units": "bpe", "num_subwords": 255}}, "greater than or equal to 256"),
        ({"shared_vocabulary": True, "source": {"units": "space"}}, "needs equal source.units and target.units"),
        ({"shared_vocabulary": True, "target": {"min_count": 2}}, "equal source.min_count and target.min_count"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Data.model_validate(settings)


def test_subwords_that_do_not_belong_are_refused():
    content = codec_of(SENTENCES, SAETZE, source=SUBWORDS, target=SUBWORDS).to_json()
    for subwords, wanted in (
        ({}, "source and target"),
        ({"source": content["subwords"]["source"]}, "source and target"),
        (None, "source and target"),
    ):
        with pytest.raises(VocabularyError, match=f"codec: expected subwords of {wanted}"):
            Codec.from_json({**content, "subwords": subwords})
    plain = codec_of(["a"], ["b"]).to_json()
    with pytest.raises(VocabularyError, match="expected subwords of no side"):
        Codec.from_json({**plain, "subwords": content["subwords"]})


def test_only_white_space_is_blank_to_subwords():
    codec = codec_of(SENTENCES, SAETZE, source=SUBWORDS)
    assert [codec.is_blank(text) for text in ("", "  ", " \t", "\u00a0", "a", ".")] == [True] * 4 + [False] * 2
