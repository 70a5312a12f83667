import gzip
import json
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.config import Data
from unrolled.errors import ConfigError, DataError
from unrolled.text import parse_input, read_pairs, split_features
from unrolled.text.files import read_text

FEATURES = Data(columns=("source", "target", "features"))


@pytest.fixture
def write(tmp_path):
    def write(content: bytes | str, name: str = "pairs.tsv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# --- line ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "noted"),
    [
        (b"ab\tx\r\ncd\ty\r\n", "2 of 2 lines end with CR LF"),
        (b"ab\tx\r\ncd\ty\r", "2 of 2 lines end with CR LF"),
        (b"ab\tx\r\ncd\ty", "1 of 2 lines end with CR LF"),
        (b"ab\tx\ncd\ty\r\n", "1 of 2 lines end with CR LF"),
        (b"ab\tx\ncd\ty\n", None),
        (b"ab\tx\ncd\ty", None),
    ],
)
def test_carriage_returns_belong_to_the_line_end(write, content, noted):
    pairs = read_pairs(write(content), Data())
    assert (pairs.sources, pairs.targets, pairs.lines.tolist()) == (["ab", "cd"], ["x", "y"], [1, 2])
    assert len(pairs.notes) == (noted is not None)
    assert noted is None or noted in pairs.notes[0]


def test_only_one_carriage_return_is_removed(write):
    assert read_pairs(write(b"ab\tx\r\r\ncd\ty\r\r"), Data()).targets == ["x\r", "y\r"]


def test_lines_end_at_line_feed_only(write):
    odd = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x1dg\x1eh\x85i\rj"
    pairs = read_pairs(write(f"{odd}\tx\nk\ty\n"), Data())
    assert pairs.sources == [odd, "k"]


def test_old_mac_line_ends_are_named(write):
    with pytest.raises(DataError, match="lines end with CR alone"):
        read_pairs(write(b"ab\tx\rcd\ty\r"), Data())


# --- encodings -------------------------------------------------------------------------------------------------------


def test_byte_that_is_not_utf8_is_placed(write):
    with pytest.raises(DataError) as caught:
        read_pairs(write(b"ab\tx\ncan\x92t\ty\n"), Data())
    assert str(caught.value).endswith(
        "pairs.tsv, line 2: column 4 (byte 8 of the file, 0x92) is not UTF-8; looks like cp1252; try data.encoding"
    )


def test_column_counts_characters_and_byte_counts_bytes(write):
    with pytest.raises(DataError, match=r"line 1: column 3 \(byte 4 of the file, 0xff\) is not UTF-8"):
        read_pairs(write("éé".encode() + b"\xff\tx\n"), Data())


def test_declared_encoding_is_used(write):
    assert read_pairs(write(b"can\x92t\ty\n"), Data(encoding="cp1252")).sources == ["can\u2019t"]
    assert read_pairs(write("ж\ty\n".encode("utf-16")), Data(encoding="utf-16")).sources == ["ж"]
    with pytest.raises(ConfigError, match="'klingon' is not a text encoding"):
        read_pairs(write("a\tb\n"), Data(encoding="klingon"))
    with pytest.raises(ConfigError, match="'rot13' is not a text encoding"):
        read_pairs(write("a\tb\n"), Data(encoding="rot13"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_encodings_are_named(write, encoding):
    with pytest.raises(DataError, match=f"is {encoding.upper()} .* set data.encoding={encoding}"):
        read_pairs(write("ab\tx\n".encode(encoding)), Data())


def test_nul_is_refused_with_its_place(write):
    with pytest.raises(DataError, match="line 2: column 3 is a NUL character"):
        read_pairs(write(b"ab\tx\nc\t\0\n"), Data())


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"ab\tx\nab\t\xe0\xa4", "line 2: column 4 .* the file ends within a character"),
        (b"a\xed\xa0\xbd\tx\n", "half of a surrogate pair"),
        ("прямая речь\tx\n".encode("cp1251"), "is not UTF-8; try data.encoding"),
    ],
)
def test_cause_of_bad_bytes_is_guessed(write, content, match):
    with pytest.raises(DataError, match=match):
        read_pairs(write(content), Data())


def test_byte_order_mark_is_dropped_at_the_start_only(write):
    assert read_pairs(write("\ufeffab\t\ufeffx\n"), Data()).sources == ["ab"]
    assert read_pairs(write("\ufeffab\t\ufeffx\n"), Data()).targets == ["\ufeffx"]


def test_gzip_is_told_by_its_bytes(write):
    assert read_pairs(write(gzip.compress(b"ab\tx\n"), "no_suffix"), Data()).sources == ["ab"]
    with pytest.raises(DataError, match="broken gzip file"):
        read_pairs(write(gzip.compress(b"ab\tx\n" * 99)[:-9], "cut.gz"), Data())
    damaged = bytearray(gzip.compress(b"ab\tx\n" * 99))
    damaged[14] ^= 0xFF
    with pytest.raises(DataError, match="broken gzip file"):
        read_pairs(write(bytes(damaged), "damaged.gz"), Data())


def test_what_is_no_file_is_one_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"missing\.tsv: no such file"):
        read_pairs(tmp_path / "missing.tsv", Data())
    with pytest.raises(DataError, match="is a directory"):
        read_pairs(tmp_path, Data())
    with pytest.raises(DataError, match="cannot be read"):
        read_pairs("nul\0byte", Data())


@pytest.mark.parametrize("settings", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}])
def test_locale_changes_nothing(write, settings):
    path = write("\u2019\tж\n")
    code = (
        "import sys, json; from unrolled.config import Data; from unrolled.text import read_pairs;"
        "pairs = read_pairs(sys.argv[1], Data()); print(json.dumps([pairs.sources, pairs.targets]))"
    )
    ran = subprocess.run([sys.executable, "-c", code, path], env={**os.environ, **settings}, capture_output=True)
    assert json.loads(ran.stdout) == [["\u2019"], ["ж"]], ran.stderr


# --- columns ---------------------------------------------------------------------------------------------------------


def test_quotes_are_ordinary_symbols(write):
    lines = ["First\tfirst", '"Second\tsecond', 'Third "sentence"\tthird', "Fourth\tfourth", "Fifth\tfifth", "Sixth\ts"]
    pairs = read_pairs(write("\n".join(lines)), Data())
    assert pairs.sources == [line.split("\t")[0] for line in lines]


def test_wrong_number_of_columns_is_counted_and_placed(write):
    content = "a\tb\n\nc\td\te\nf\tg\nh\n"
    with pytest.raises(DataError) as caught:
        read_pairs(write(content), Data())
    assert "line 3: expected 2 columns (source, target), got 3; 2 lines of 4 are wrong" in str(caught.value)
    assert caught.value.line == 3


def test_columns_in_any_order_and_skipped(write):
    data = Data(columns=("features", "-", "target", "source"))
    pairs = read_pairs(write("V;PST\t7\twent\tgo\n"), data)
    assert (pairs.sources, pairs.targets, pairs.features) == (["go"], ["went"], [("V", "PST")])


def test_blank_sides_are_left_out_and_listed(write):
    pairs = read_pairs(write("ab\tx\n\tz\ncd\t\n\n   \t\t\n".replace("\t\t\n", "\n")), Data())
    assert pairs.sources == ["ab"]
    assert pairs.notes[0].endswith(
        "4 lines left out: 2 blank (lines 4, 5), 1 without source (line 2), 1 without target (line 3)"
    )


def test_long_lists_of_lines_are_shortened(write):
    pairs = read_pairs(write("a\tb\n" + "\tz\n" * 9), Data())
    assert "9 without source (lines 2, 3, 4, 5, 6 and 4 more)" in pairs.notes[0]


@pytest.mark.parametrize("content", ["", "\n", "\n\n \n", "\t\n", "\ufeff"])
def test_no_data_is_an_error(write, content):
    with pytest.raises(DataError, match="holds no data"):
        read_pairs(write(content), Data())
    with pytest.raises(DataError, match=r"holds no data: 1 without target \(line 1\)"):
        read_pairs(write("a\t\n"), Data())


def test_header_is_data_unless_declared(write):
    path = write("source\ttarget\ncat\tkat\ndog\that\n")
    pairs = read_pairs(path, Data())
    assert len(pairs) == 3
    assert "line 1: looks like column names (source, target) but is taken as data" in pairs.notes[0]
    pairs = read_pairs(path, Data(header=True))
    assert (pairs.sources, pairs.lines.tolist(), pairs.notes) == (["cat", "dog"], [2, 3], ())
    assert read_pairs(write("cat\tkat\ndog\that\n"), Data()).notes == ()


def test_files_without_targets_are_read_where_none_is_needed(write):
    path = write("a\nb\n")
    with pytest.raises(DataError, match="expected 2 columns"):
        read_pairs(path, Data())
    pairs = read_pairs(path, Data(), need_target=False)
    assert (pairs.sources, pairs.targets) == (["a", "b"], None)
    assert read_pairs(write("a\tx\n"), Data(), need_target=False).targets == ["x"]
    with pytest.raises(ConfigError, match="no column is the target"):
        read_pairs(path, Data(columns=("source",)))


def test_columns_are_frozen_and_rows_are_taken_in_order(write):
    pairs = read_pairs(write("a\tx\tN\nb\ty\tV\n"), FEATURES)
    taken = pairs.take(np.array([1, 0, 1]))
    assert (taken.sources, taken.targets, taken.lines.tolist()) == (["b", "a", "b"], ["y", "x", "y"], [2, 1, 2])
    assert taken.features == [("V",), ("N",), ("V",)]
    assert (taken.file, taken.sha256) == (pairs.file, pairs.sha256)
    with pytest.raises(FrozenInstanceError):
        pairs.sources = []


# --- CSV -------------------------------------------------------------------------------------------------------------


def test_csv_quoting(write):
    pairs = read_pairs(write('"a, b",x\r\nc,"say ""y"""\r\n'), Data(format="csv"))
    assert (pairs.sources, pairs.targets, pairs.lines.tolist()) == (["a, b", "c"], ["x", 'say "y"'], [1, 2])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('a,x\n"b,y\nc,z\n', "line 2: not CSV: a quote is opened and not closed"),
        ('a,x\n"b"c,y\n', "line 2: not CSV: "),
        ('a,x\n"b\nc",y\n', "line 2: a field holds a line break"),
        ("a,x\n" + '"' + "b" * 200_000, "line 2: not CSV: a quote is opened and not closed"),
    ],
)
def test_csv_errors_name_the_line(write, content, match):
    with pytest.raises(DataError, match=match):
        read_pairs(write(content), Data(format="csv"))


# --- features --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("V;SBJV;ARG(NOM;3)", ("V", "SBJV", "ARG(NOM;3)")),
        ("ARG(A;B(C;D);E);N", ("ARG(A;B(C;D);E)", "N")),
        ("N", ("N",)),
        ("", ()),
        (";N; PL ;", ("N", "PL")),
        ("A(;);B", ("A(;)", "B")),
    ],
)
def test_features_are_split_outside_parentheses(text, expected):
    assert split_features(text) == expected


@pytest.mark.parametrize("text", ["A(B", "A)B", "A)B("])
def test_unmatched_parentheses_are_an_error_with_line(write, text):
    with pytest.raises(DataError, match="line 2: parentheses do not match in features"):
        read_pairs(write(f"a\tb\tV\na\tb\t{text}\n"), FEATURES)


@given(st.lists(st.text(st.sampled_from("AB();"), max_size=6), max_size=6))
def test_features_join_back(parts):
    text = ";".join(parts)
    try:
        features = split_features(text)
    except DataError:
        return
    assert all(feature and feature.count("(") == feature.count(")") for feature in features)
    assert ";".join(split_features(";".join(features))) == ";".join(features)


# --- prediction input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "columns", "expected"),
    [
        ("a b", ("source", "target"), ("a b", ())),
        ("ab\tx", ("source", "target"), ("ab", ())),
        ("x\tab", ("target", "source"), ("ab", ())),
        ("ab", ("target", "-", "source"), ("ab", ())),
        ("go\tV;PST", ("source", "target", "features"), ("go", ("V", "PST"))),
        ("go\twent\tV;PST", ("source", "target", "features"), ("go", ("V", "PST"))),
        ("go\tV;PST", ("source", "features", "target"), ("go", ("V", "PST"))),
        ("", ("source", "target", "features"), ("", ())),
        ("  ", ("source", "target", "features"), ("  ", ())),
    ],
)
def test_prediction_input(line, columns, expected):
    assert parse_input(line, Data(columns=columns)) == expected


def test_prediction_input_with_missing_features_names_the_line():
    with pytest.raises(DataError, match=r"^words, line 7: expected 2 columns \(source, features\), got 1"):
        parse_input("go", FEATURES, file="words", number=7)


# --- properties ------------------------------------------------------------------------------------------------------


texts = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_every_text_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    rows[0] = (rows[0][0].lstrip("\ufeff") or "a", rows[0][1])
    path.write_bytes("".join(f"{source}\t{target}\n" for source, target in rows).encode())
    pairs = read_pairs(path, Data())
    assert list(zip(pairs.sources, pairs.targets, strict=True)) == rows


def test_hash_is_of_the_stored_bytes(write):
    assert read_text(write(b"abc")).sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
