import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.config import Data, Side
from unrolled.errors import ConfigError, DataError
from unrolled.text import UNK, Codec, hold_out, padding_share, plan_batches, prepare, read_pairs, seen_sources

SHARED = Path(__file__).parents[3] / "shared" / "data"
INFLECTION = Data(columns=("source", "target", "features"))
needs_data = pytest.mark.skipif(not SHARED.exists(), reason="the shared data sets are not here")


@pytest.fixture
def write(tmp_path):
    def write(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode())
        return path

    return write


def rows(*pairs: str) -> str:
    return "".join(pair.replace(" ", "\t") + "\n" for pair in pairs)


# --- the whole -------------------------------------------------------------------------------------------------------


def test_examples_are_the_encoded_pairs(write):
    prepared = prepare(write("t", rows("ab x", "b yx", "a y")), write("d", rows("b x")), Data(), seed=0)
    assert len(prepared.train) == 3
    for example, row in enumerate(prepared.train.rows):
        source, target = prepared.train_pairs.sources[row], prepared.train_pairs.targets[row]
        assert prepared.train.source[example].tolist() == prepared.codec.encode_source(source).tolist()
        assert prepared.train.target[example].tolist() == prepared.codec.encode_target(target).tolist()
    assert prepared.dev_pairs.sources == ["b"]
    assert prepared.dev.target[0].tolist() == prepared.codec.encode_target("x").tolist()


def test_vocabulary_is_of_the_training_pairs_alone(write):
    prepared = prepare(write("t", rows("a x", "b y")), write("d", rows("aç z")), Data(), seed=0)
    assert prepared.codec.source.symbols == ("a", "b")
    assert prepared.dev.source[0].tolist()[1] == prepared.dev.target[0].tolist()[0] == UNK
    assert "valid source: 1 symbol not in the vocabulary: U+00E7 ç ×1 (line 1)" in prepared.report.notes
    assert "valid target: 1 symbol not in the vocabulary: U+007A z ×1 (line 1)" in prepared.report.notes


def test_casing_of_the_valid_sources_is_noted(write):
    prepared = prepare(write("t", rows("hello x", "b y")), write("d", rows("Hello X")), Data(), seed=0)
    cased = [note for note in prepared.report.notes if "case" in note]
    assert len(cased) == 1
    assert cased[0].startswith("valid source: 1 symbol in upper case that training had in lower case only")


def test_windows_line_ends_change_neither_data_nor_vocabulary(write):
    unix, windows = write("unix", rows("ab x", "cd y")), write("windows", rows("ab x", "cd y").replace("\n", "\r\n"))
    first, second = (prepare(path, path, Data(), seed=0) for path in (unix, windows))
    assert first.codec == second.codec
    assert first.digest["train"]["content_sha256"] == second.digest["train"]["content_sha256"]
    assert first.digest["train"]["sha256"] != second.digest["train"]["sha256"]
    assert set(first.codec.source.symbols + first.codec.target.symbols) == set("abcdxy")


@pytest.mark.parametrize("changed", [("ab x", "cd z"), ("ab x",), ("a bx", "cd y"), ("cd y", "ab x")])
def test_other_data_has_another_digest(write, changed):
    original, other = write("t", rows("ab x", "cd y")), write("o", rows(*changed))
    first, second = (prepare(path, path, Data(), seed=0).digest["train"] for path in (original, other))
    assert first["content_sha256"] != second["content_sha256"]


def test_pairs_read_as_the_model_writes(write):
    path = write("t", "cafe\u0301\tcafe\u0301\nx\ty\n")
    for form in ("NFC", "NFD"):
        prepared = prepare(path, path, Data(normal_form=form), seed=0)
        assert prepared.train_pairs.targets[0] == "caf\u00e9"
        assert prepared.codec.decode_target(prepared.train.target[0]) == "caf\u00e9"
        assert prepared.train.target.lengths[0] == (5 if form == "NFC" else 6)


def test_digest_and_report_are_plain_data(write):
    path = write("t", rows(*(f"{letter} x" for letter in "abcdefgh")))
    prepared = prepare(path, None, Data(dev_fraction=0.5), seed=0)
    assert json.loads(json.dumps(prepared.digest)) == prepared.digest
    assert json.loads(json.dumps(prepared.report.to_json()))["train"]["num_pairs"] == 4
    assert prepared.digest["dev_lines"] == prepared.dev_pairs.lines.tolist()
    assert prepared.digest["dev"] is None
    again = prepare(path, path, Data(), seed=0).digest
    assert (again["dev_lines"], again["dev"]) == (None, again["train"])


# --- duplicates, overlap, ambiguity ----------------------------------------------------------------------------------


def test_duplicates_and_overlap_are_reported(write):
    train = [f"s{number} t{number}" for number in range(10)]
    train += train[:3]
    valid = ["s0 t0", "s5 t5", "s6 other", "new x"]
    prepared = prepare(write("t", rows(*train)), write("d", rows(*valid)), Data(), seed=0)
    assert (
        "3 duplicate pairs in train; valid: 2 of 4 pairs and 3 of 4 sources occur in train" in prepared.report.lines()
    )
    assert seen_sources(prepared.train_pairs, prepared.dev_pairs).tolist() == [True, True, True, False]


def test_ambiguous_sources_bound_the_accuracy(write):
    path = write("t", rows("a x", "a x", "a y", "b z", "c z"))
    report = prepare(path, path, Data(), seed=0).report
    assert (report.train.num_ambiguous, report.train.best_accuracy, report.train.num_duplicates) == (1, 0.8, 1)
    assert (
        "ambiguous: 1 source in train has several targets; at best 80.0 % of its pairs can be right" in report.lines()
    )


def test_sources_are_compared_in_normal_form_and_with_the_set_of_their_features(write):
    train = write("t", "e\u0301\tx\tN;PL\nb\ty\tN\n")
    test = write("d", "\u00e9\tx\tPL;N\nb\ty\tPL\n")
    pairs = [read_pairs(path, INFLECTION) for path in (train, test)]
    assert seen_sources(*pairs).tolist() == [True, False]
    overlap = prepare(train, test, INFLECTION, seed=0).report.overlap
    assert (overlap.num_seen_pairs, overlap.num_seen_sources, overlap.num_seen_texts) == (1, 1, 2)
    assert str(overlap) == "1 of 2 pairs and 1 of 2 sources occur in train, 1 more with other features"


# --- lengths ---------------------------------------------------------------------------------------------------------


LIMITED = {"source": Side(max_length=6), "target": Side(max_length=4)}


def long_file(write):
    normal = [f"{number:03d} t" for number in range(20)]
    return write("t", rows(*normal[:7], "x" * 100_000 + " long", *normal[7:], "fiver abc", "ok abcd"))


def test_over_long_pairs_are_dropped_and_reported(write):
    path = long_file(write)
    prepared = prepare(path, path, Data(**LIMITED), seed=0)
    assert prepared.train.rows.tolist() == [*range(7), *range(8, 22)]
    assert prepared.train.source.lengths.max() == 6
    assert prepared.train.target.lengths.max() == 4
    assert "l" not in prepared.codec.target.symbols
    assert prepared.report.train.source.longest == 100_001
    part = "2 of 23 pairs dropped (longest source 100001 in line 8, longest target 5 in line 8)"
    assert prepared.report.lines()[5] == (
        f"over 6 source or 4 target symbols (end symbol counted): train: {part}; valid: {part};"
        " prediction reads every line whole"
    )


def test_over_long_pairs_are_cut_and_keep_their_end_symbol(write):
    path = long_file(write)
    prepared = prepare(path, path, Data(**LIMITED, over_long="cut"), seed=0)
    assert len(prepared.train) == 23
    assert prepared.codec.source_symbols(prepared.train.source[7]) == ["x"] * 5 + ["</s>"]
    assert prepared.codec.target_symbols(prepared.train.target[7]) == ["l", "o", "n", "</s>"]
    assert prepared.codec.target_symbols(prepared.train.target[22]) == ["a", "b", "c", "</s>"]
    assert prepared.dev_pairs.targets[22] == "abcd"
    assert "2 of 23 pairs cut" in "\n".join(prepared.report.lines())


@pytest.mark.parametrize(("units", "kept"), [("byte", "é"), ("character", "éé€"), ("space", "éé€ éé€ éé€")])
def test_cutting_keeps_whole_symbols(write, units, kept):
    path = write("t", "a\téé€ éé€ éé€ éé€ éé€\n")
    target = Side(units=units, max_length=4)
    prepared = prepare(path, path, Data(target=target, over_long="cut"), seed=0)
    assert prepared.codec.decode_target(prepared.train.target[0]) == kept


def test_nothing_within_the_limits_is_an_error(write):
    path = write("t", rows("abcdefgh x", "ijklmnop y"))
    with pytest.raises(DataError, match="all 2 pairs are over the length limits; raise max_length"):
        prepare(path, path, Data(**LIMITED), seed=0)
    short = write("s", rows("ab x"))
    prepared = prepare(short, path, Data(**LIMITED), seed=0)
    assert prepared.dev is None
    assert "no valid set: all 2 pairs are over the length limits" in prepared.report.notes


def test_lengths_are_told_with_their_line(write):
    path = write("t", rows("a x", "abcd xy", "ab xyz"))
    lines = prepare(path, path, Data(), seed=0).report.lines()
    assert "source: 4 symbols; length mean 3.3, median 3, longest 5 (line 2)" in lines
    assert "target: 3 symbols; length mean 3.0, median 3, longest 4 (line 3)" in lines


def test_each_side_is_measured_in_its_own_units(write):
    path = write("t", "abc\tlong token\nabcd\tx\n")
    prepared = prepare(path, path, Data(target=Side(units="space", max_length=3), source=Side(max_length=4)), seed=0)
    assert prepared.train.rows.tolist() == [0]
    assert (prepared.report.train.source.longest, prepared.report.train.target.longest) == (5, 3)


# --- held-out sources ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), max_size=40), st.floats(0.01, 0.99), st.integers(1, 5), st.integers(0, 3))
def test_groups_stay_whole_and_neither_side_is_empty(numbers, fraction, limit, seed):
    groups = np.unique(np.array(numbers, dtype=np.int64), return_inverse=True)[1]
    train, dev = hold_out(groups, fraction=fraction, limit=limit, seed=seed)
    assert sorted([*train, *dev]) == list(range(len(numbers)))
    assert not set(groups[train]) & set(groups[dev])
    num_groups = len(set(groups.tolist()))
    assert len(set(groups[dev].tolist())) == min(max(1, round(fraction * num_groups)), limit, max(0, num_groups - 1))


def test_split_follows_the_seed(write):
    path = write("t", rows(*(f"s{number} t" for number in range(50))))
    lines = [prepare(path, None, Data(), seed=seed).digest["dev_lines"] for seed in (1, 1, 2)]
    assert lines[0] == lines[1] != lines[2]
    assert len(lines[0]) == 5


def test_targets_of_one_source_stay_together(write):
    path = write("t", rows(*(f"s{number % 10} t{number}" for number in range(30))))
    prepared = prepare(path, None, Data(dev_fraction=0.3), seed=0)
    assert len(prepared.dev) == 9
    assert not set(prepared.train_pairs.sources) & set(prepared.dev_pairs.sources)
    assert (
        "no dev file was given: 3 of 10 distinct sources (9 of 30 pairs) are held out as valid set (seed 0)"
        in prepared.report.notes
    )


def test_almost_no_data(write):
    prepared = prepare(write("one", "a\tb\n"), None, Data(), seed=0)
    assert (len(prepared.train), prepared.dev, prepared.dev_pairs) == (1, None, None)
    assert "no valid set: one distinct source cannot be split; give a dev file" in prepared.report.notes
    assert "little data: 1 training and 0 valid pairs; figures on so few say little" in prepared.report.notes
    for number, is_little in ((99, True), (100, False)):
        path = write("many", rows(*(f"s{line} x" for line in range(number))))
        notes = prepare(path, path, Data(), seed=0).report.notes
        assert any(note.startswith("little data") for note in notes) == is_little
    five = prepare(write("five", rows(*(f"{letter} x" for letter in "abcde"))), None, Data(), seed=0)
    assert (len(five.train), len(five.dev)) == (4, 1)


# --- a saved vocabulary ----------------------------------------------------------------------------------------------


def test_saved_vocabulary_is_kept_and_new_symbols_are_listed(write):
    codec = Codec.fit(Data(), ["ab", "cde"], ["x", "y"])
    path = write("n", rows("fg x", "hij y", "f z"))
    prepared = prepare(path, path, Data(), seed=0, codec=codec)
    assert (prepared.codec.source, prepared.codec.target) == (codec.source, codec.target)
    assert set(prepared.train.source[0][:-1]) == {UNK}
    assert prepared.report.notes[0].startswith("WARNING: 6 of 6 source symbols (100%) are unknown to the saved model")
    note = "train source: 5 symbols not in the vocabulary: U+0066 f ×2 (line 1), U+0067 g ×1 (line 1)"
    assert any(line.startswith(note) for line in prepared.report.notes)
    known = write("k", rows("ab x", "a y"))
    notes = prepare(known, known, Data(), seed=0, codec=codec).report.notes
    assert not any("vocabulary" in note or "WARNING" in note for note in notes)
    some = write("s", rows(*["abcde x"] * 3, "abf y"))
    assert not any("WARNING" in note for note in prepare(some, some, Data(), seed=0, codec=codec).report.notes)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"normal_form": "NFD"}, r"data\.normal_form: the saved model has NFC, the settings say NFD"),
        ({"source": Side(units="byte")}, r"data\.source\.units: the saved model has character"),
        ({"columns": ("source", "target", "features")}, "a features column: the saved model has False"),
    ],
)
def test_saved_vocabulary_cannot_be_read_in_another_way(write, settings, match):
    path = write("t", "ab\tx\tN\n")
    codec = Codec.fit(Data(), ["ab"], ["x"])
    with pytest.raises(ConfigError, match=match):
        prepare(path, path, Data(**settings), seed=0, codec=codec)


# --- odd files -------------------------------------------------------------------------------------------------------


ODD = [
    "ภาษาไทย\tphaasaa thai",
    "क्षत्रिय\tkSatriya",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8\thanguk",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 x\tfamily",
    "שָׁלוֹם\u200f\tshalom",
    "العَرَبِيَّة\tal-ʿarabiyyah",
    " lead\ttrail ",
    "a\u2028b\x85c\x0bd\tone\x1cline",
    "\ufeffmark\u00ad\u200b\tinvisible",
    "<s></s><pad><unk>\t<s>",
    "$$\\frac\t\"quoted'",
]


@pytest.mark.parametrize("units", ["character", "space", "byte"])
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKD", "none"])
def test_odd_texts_come_back(write, units, form):
    path = write("t", "first\tline\n" + "\n".join(ODD) + "\n")
    side = Side(units=units)
    prepared = prepare(path, path, Data(source=side, target=side, normal_form=form), seed=0)
    assert len(prepared.train) == len(ODD) + 1
    assert not np.isin(UNK, prepared.train.target.values)
    for example, target in enumerate(prepared.train_pairs.targets):
        expected = target.strip(" ") if units == "space" else target
        assert prepared.codec.decode_target(prepared.train.target[example]) == expected


# --- real data -------------------------------------------------------------------------------------------------------


@needs_data
def test_real_pronunciations_waste_little_padding():
    folder, target = SHARED / "cmudict", Side(units="space")
    prepared = prepare(folder / "train.tsv", folder / "dev.tsv", Data(target=target), seed=0)
    lengths = prepared.train.source.lengths, prepared.train.target.lengths
    batches = plan_batches(*lengths, batch_tokens=2048, max_batch_size=512, seed=0, epoch=0)
    assert padding_share(batches, *lengths) < 0.01
    assert (len(prepared.train), prepared.report.overlap.num_seen_sources) == (110_582, 0)
    assert len(prepared.codec.target.symbols) == 39


@needs_data
def test_real_inflections_have_their_features():
    folder = SHARED / "sigmorphon2022-inflection"
    prepared = prepare(folder / "hun_large.train", folder / "hun.dev", INFLECTION, seed=0)
    assert len(prepared.train) == 7000
    assert "PL" in prepared.codec.source.features
    assert any("feature PSS1S ×39" in note for note in prepared.report.notes)


@needs_data
def test_real_korean_is_decomposed():
    path = SHARED / "sigmorphon2020-g2p" / "kor_train.tsv"
    sizes = [
        len(prepare(path, path, Data(normal_form=form, target=Side(units="space")), seed=0).codec.source.symbols)
        for form in ("NFC", "NFD")
    ]
    assert sizes == [834, 61]


@needs_data
def test_real_sentences_are_split_at_line_feeds_only(tmp_path):
    folder = SHARED / "multi30k"
    english, german = (
        gzip.decompress((folder / f"val.{language}.gz").read_bytes()).decode().split("\n")[:-1]
        for language in ("en", "de")
    )
    path = tmp_path / "val.tsv"
    path.write_bytes("".join(f"{a}\t{b}\n" for a, b in zip(english, german, strict=True)).encode())
    pairs = read_pairs(path, Data())
    assert (len(pairs), pairs.sources, pairs.targets) == (1014, english, german)


def test_limits_count_subwords_and_pieces_of_dropped_pairs_are_known(tmp_path):
    lines = ["der hund\tthe dog"] * 60 + ["katze katze katze katze\tcat"]
    side = Side(units="bpe", num_subwords=290, max_length=4)
    for over_long, num_pairs in (("drop", 60), ("cut", 61)):
        data = Data(source=side, target=side, shared_vocabulary=True, over_long=over_long)
        path = tmp_path / "pairs.tsv"
        path.write_text("\n".join(lines), encoding="utf-8")
        prepared = prepare(path, path, data, seed=0)
        assert prepared.report.train.source.longest == 5
        assert len(prepared.train.source) == num_pairs
        assert prepared.train.source.lengths.max() == (3 if over_long == "drop" else 4)
        assert " katze" in prepared.codec.target.ids
