"""Running text: files in blocks, the place of a cut, the store of ids, and what is told before training."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.config import Text
from unrolled.errors import ConfigError, DataError
from unrolled.text import files
from unrolled.text.corpus import Corpus, list_files
from unrolled.text.text_codec import TextCodec
from unrolled.text.text_preparation import prepare_text
from unrolled.text.vocabulary import BOS, EOS


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def whole(corpus):
    return "".join(corpus.blocks())


@pytest.fixture
def small_blocks(monkeypatch):
    """Make the blocks of a file a few bytes long."""

    def read(path, *, encoding="utf-8", size=7, read=files.read_blocks):
        return read(path, encoding=encoding, size=size)

    monkeypatch.setattr("unrolled.text.corpus.read_blocks", read)


@given(text=st.text(alphabet="ab \nçह\ufeff\u2028", max_size=60), size=st.integers(1, 20))
def test_blocks_of_any_size_are_the_text(tmp_path_factory, text, size):
    path = write(tmp_path_factory.mktemp("text") / "a.txt", text)
    blocks = list(files.read_blocks(path, size=size))
    assert "".join(blocks) == text.removeprefix("\ufeff")
    assert all(block[-1] in " \n" for block in blocks[:-1])


def test_a_gzip_file_is_the_same_text(tmp_path):
    text = "one\ntwo three\n" * 50
    path = write(tmp_path / "a.txt.gz", gzip.compress(text.encode()))
    assert "".join(files.read_blocks(path, size=64)) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"fine\nalso f\xefne\n",
            r"bad.txt, line 2: column 7 \(byte 11 of the file, 0xef\) is not UTF-8; looks like cp1252",
        ),
        (b"fine\nnot\0text\n", r"bad.txt, line 2: column 4 is a NUL character"),
        (b"one line of words \xff and more", r"line 1: column 19 \(byte 18 of the file, 0xff\) is not UTF-8"),
        (b"one line \n of words \xff and more", r"line 2: column 11 \(byte 20 of the file, 0xff\) is not UTF-8"),
        ("text".encode("utf-16"), r"bad.txt: is UTF-16 \(its byte order mark says so\), expected UTF-8"),
        (gzip.compress(b"text" * 99, mtime=0)[:-9], r"bad.txt: broken gzip file"),
        (b"old\rmac\r", r"bad.txt: lines end with CR alone"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path, small_blocks, content, message):
    path = write(tmp_path / "bad.txt", content)
    with pytest.raises(DataError, match=message):
        whole(Corpus(path, Text()))


def test_another_encoding_is_asked_for_by_name(tmp_path):
    path = write(tmp_path / "a.txt", "naïve\n".encode("cp1252"))
    assert whole(Corpus(path, Text(encoding="cp1252"))) == "naïve\n"
    assert whole(Corpus(write(tmp_path / "b.txt", "naïve\n".encode("utf-16")), Text(encoding="utf-16"))) == "naïve\n"
    with pytest.raises(ConfigError, match="'utf-99' is not a text encoding"):
        whole(Corpus(path, Text(encoding="utf-99")))


def test_a_folder_is_all_its_files_in_order_and_each_ends_its_line(tmp_path):
    write(tmp_path / "b.txt", "second\r\n")
    write(tmp_path / "a" / "z.txt", "first")
    write(tmp_path / "c.txt", "third")
    write(tmp_path / ".hidden", "never")
    corpus = Corpus(tmp_path, Text())
    assert [path.name for path in corpus.files] == ["z.txt", "b.txt", "c.txt"]
    assert whole(corpus) == "first\nsecond\nthird"
    assert corpus.notes() == [
        f"{tmp_path / 'b.txt'}: lines end with CR LF (Windows line ends); the CR is not part of the text"
    ]


def test_folders_and_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.txt: no such file"):
        list_files(tmp_path / "gone.txt")
    with pytest.raises(DataError, match="is a folder without files"):
        list_files(tmp_path)


@given(text=st.text(alphabet="ab \n", max_size=50), start=st.integers(0, 60), length=st.integers(0, 60))
def test_a_part_of_the_text_is_a_slice_of_it(tmp_path_factory, text, start, length):
    corpus = Corpus(write(tmp_path_factory.mktemp("text") / "a.txt", text), Text())
    assert "".join(corpus.blocks(start, start + length)) == text[start : start + length]
    assert corpus.size() == len(text)


@pytest.mark.parametrize(
    ("settings", "position", "cut"),
    [
        ({}, 6, 6),
        ({"units": "word"}, 6, 4),
        ({"units": "word"}, 8, 8),
        ({"document_end": "\n"}, 6, 0),
        ({"document_end": "\n"}, 13, 12),
    ],
)
def test_a_cut_keeps_words_and_documents_whole(tmp_path, small_blocks, settings, position, cut):
    corpus = Corpus(write(tmp_path / "a.txt", "one two four\nx y\n".replace("four\n", "fou\n")), Text(**settings))
    assert corpus.cut_before(position) == cut


# --- ids -------------------------------------------------------------------------------------------------------------


@given(text=st.text(alphabet="ab \nçह😀", max_size=40))
@pytest.mark.parametrize("units", ["character", "byte"])
def test_text_comes_back_from_its_ids(units, text):
    codec = TextCodec.fit(Text(units=units), [text])
    assert codec.decode(codec.encode(text)) == text
    assert TextCodec.from_json(codec.to_json()) == codec


def test_words_are_cut_at_ascii_white_space_and_line_ends_are_words():
    text = " a\u00a0b  c\t<unk> \ufeffd \n\n e"
    codec = TextCodec.fit(Text(units="word"), [text])
    assert codec.names(codec.encode(text)) == ["a\u00a0b", "c", "<unk>", "\ufeffd", "\n", "\n", "e"]
    assert codec.decode(codec.encode(text)) == "a\u00a0b c <unk> \ufeffd\n\ne"
    assert codec.decode(codec.encode("c never")) == "c <unk>"
    assert codec.encode("never")[0] == codec.encode("<unk>")[0] >= 4
    without = TextCodec.fit(Text(units="word", line_ends=False), [text])
    assert "\n" not in without.vocabulary.symbols


@pytest.mark.parametrize("units", ["bpe", "unigram"])
def test_subwords_of_lines_give_the_text_back(units):
    text = " the cat sat\n\n  on the mat,\nthe  çat sat on\n" * 20 + "the"
    codec = TextCodec.fit(Text(units=units, num_subwords=280), [text])
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert units == "unigram" or len(ids) < len(text.encode()) / 1.5
    assert TextCodec.from_json(codec.to_json()).encode(text).tolist() == ids.tolist()
    assert codec.names(codec.start) == ["\n"]
    lines = [line + "\n" for line in text.split("\n")]
    assert codec.symbols(lines).values.tolist() == [*ids.tolist(), *codec.start.tolist()]  # each line by itself
    new = "ünseen \t words\n 😀"
    assert codec.decode(codec.encode(new)) == new
    assert "".join(list(codec.pieces(codec.encode("é")))) == "é"


def test_options_belong_to_their_units():
    for options in ({"num_subwords": 300}, {"line_ends": False}, {"units": "byte", "max_symbols": 9}):
        with pytest.raises(ValueError, match="units="):
            Text(**options)


def test_unknown_characters_are_written_as_u_fffd():
    codec = TextCodec.fit(Text(), ["abc\n"])
    assert codec.decode(codec.encode("abç")) == "ab\ufffd"
    assert codec.names(codec.start) == ["\n"]
    assert not TextCodec.fit(Text(), ["abc"]).start.size


def test_bytes_become_characters_with_their_last_byte():
    codec = TextCodec.fit(Text(units="byte"), [""])
    assert list(codec.pieces(codec.encode("é!"))) == ["", "é", "!", ""]
    assert codec.decode(codec.encode("é")[:1]) == "\ufffd"


def test_marked_documents_have_their_own_start_and_end(tmp_path, small_blocks):
    text = Text(document_end="\n\n", valid_fraction=0.4)
    write(tmp_path / "a.txt", "ab\ncd\n\n\n\nef\n\nabc def\n\nbed face")
    prepared = prepare_text(tmp_path / "a.txt", None, text, folder=tmp_path / "store")
    names = "".join(prepared.codec.names(prepared.train))
    assert names == "<s>ab\ncd</s><s>ef</s>"
    assert prepared.codec.start.tolist() == [BOS]
    assert prepared.valid[0] == BOS
    assert prepared.valid[-1] == EOS
    assert (np.asarray(prepared.valid) == BOS).sum() == 2


def test_one_line_a_document_without_an_end_at_the_end(tmp_path):
    write(tmp_path / "names.txt", "emma\nolivia\nava")
    prepared = prepare_text(
        tmp_path / "names.txt", tmp_path / "names.txt", Text(document_end="\n"), folder=tmp_path / "s"
    )
    assert "".join(prepared.codec.names(prepared.train)) == "<s>emma</s><s>olivia</s><s>ava</s>"


# --- preparation -----------------------------------------------------------------------------------------------------


def test_the_last_tenth_is_held_out_and_the_vocabulary_is_of_the_rest(tmp_path):
    write(tmp_path / "a.txt", "abc\n" * 225 + "abX\n" * 25)
    prepared = prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store")
    assert (prepared.train.size, prepared.valid.size) == (900, 100)
    assert prepared.codec.vocabulary.symbols == ("\n", "a", "b", "c")
    assert prepared.report.valid.num_unknown == 25
    assert prepared.report.lines() == [
        "train: 900 symbols, 900 characters, 225 lines (a.txt)",
        "valid: 100 symbols, 100 characters, 25 lines, 25 % unknown (a.txt)",
        "vocabulary: 4 distinct characters; longest line of train: 3 characters (line 1)",
        "note: valid: 1 symbol not in the vocabulary: U+0058 X ×25 (line 1)",
        "note: little text: 900 training and 100 valid symbols; figures on so few say little",
    ]


def test_the_longest_line_is_found_across_blocks(tmp_path, small_blocks):
    write(tmp_path / "a.txt", "one\nthis is the longest line\nlast")
    prepared = prepare_text(tmp_path / "a.txt", tmp_path / "a.txt", Text(), folder=tmp_path / "store")
    assert (prepared.report.train.longest, prepared.report.train.longest_line, prepared.report.train.num_lines) == (
        24,
        2,
        3,
    )


def test_ids_are_stored_once_for_the_same_bytes_and_settings(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "some text\n" * 30)
    first = prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store")
    monkeypatch.setattr(Corpus, "blocks", None)  # not read again
    again = prepare_text(tmp_path / "a.txt", None, Text(context=7), folder=tmp_path / "store")
    assert isinstance(again.train, np.memmap)
    assert again.train.tolist() == first.train.tolist()
    assert again.codec.text.context == 7
    assert [path.name for path in (tmp_path / "store").iterdir()] == [
        path.name for path in (tmp_path / "store").glob("*")
    ]
    monkeypatch.undo()
    write(tmp_path / "a.txt", "some text\n" * 31)
    assert prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store").train.size == 279
    assert len(list((tmp_path / "store").iterdir())) == 2


def test_a_store_that_was_cut_off_is_made_again(tmp_path):
    write(tmp_path / "a.txt", "some text\n" * 30)
    first = prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store").train.tolist()
    (stored,) = (tmp_path / "store").rglob("train.bin")
    stored.write_bytes(stored.read_bytes()[:-2])
    assert prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store").train.tolist() == first


def test_a_killed_preparation_leaves_nothing_that_counts(tmp_path):
    write(tmp_path / "a.txt", "some text\n" * 30)
    write(tmp_path / "bad.txt", b"fine\n" * 30 + b"\xff\n")
    with pytest.raises(DataError):
        prepare_text(tmp_path / "bad.txt", None, Text(), folder=tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(("text", "message"), [("", "is empty; expected running text"), ("x", "1 symbol to train on")])
def test_no_text_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=re.escape(message)):
        prepare_text(write(tmp_path / "a.txt", text), None, Text(), folder=tmp_path / "store")


def test_a_few_symbols_are_taken_with_a_warning(tmp_path):
    prepared = prepare_text(write(tmp_path / "a.txt", "hello"), None, Text(context=256), folder=tmp_path / "store")
    assert prepared.valid is None
    assert prepared.train.size == 5
    assert prepared.report.notes == (
        "no valid set: the text is too short to hold a part of it out; give a valid file",
        "data.context=256 is longer than the text: cut to 4",
        "little text: 5 training and 0 valid symbols; figures on so few say little",
    )


def test_a_saved_vocabulary_is_kept_and_new_symbols_are_listed(tmp_path):
    codec = TextCodec.fit(Text(), ["abcde\n"])
    write(tmp_path / "a.txt", "fghij\n" * 50)
    prepared = prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store", codec=codec)
    assert prepared.codec == codec
    own = prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store")
    assert own.codec != codec
    assert len(list((tmp_path / "store").iterdir())) == 2
    prepare_text(tmp_path / "a.txt", None, Text(), folder=tmp_path / "store", codec=own.codec)
    assert len(list((tmp_path / "store").iterdir())) == 2
    assert "train: 5 symbols not in the vocabulary: U+0066 f ×45 (line 1)" in "\n".join(prepared.report.notes)
    with pytest.raises(ConfigError, match=r"data\.units: the saved model has 'character', the settings say 'byte'"):
        prepare_text(tmp_path / "a.txt", None, Text(units="byte"), folder=tmp_path / "store", codec=codec)
