"""Evaluation and comparison: grouped answers, files of other programs, the exposure gap."""

from __future__ import annotations

import json

import numpy as np
import pytest

from unrolled.config import Data, Side
from unrolled.errors import ConfigError, DataError
from unrolled.inference import AnswerKey, compare, load
from unrolled.inference.comparison import guess_data
from unrolled.inference.exposure import exposure_gap

SPACED = Data(target=Side(units="space"))


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return make


def test_any_of_the_answers_is_right(write):
    key = AnswerKey(write("t.tsv", "tomato\tT O\nab\tA B C D\ntomato\tT A\n"), SPACED)
    report = key.grade(["T A", "A X"], name="me")
    assert (report.error_rate.value, report.symbol_error_rate.value) == (0.5, 0.5)  # 3 edits to 2 + 4 symbols
    assert report.predictions == ("T A", "A X", "T A")


def test_one_answer_a_line_is_taken_too(write):
    key = AnswerKey(write("t.tsv", "a\tx\nb\ty\na\tz\n\nc\tx\n"), Data())
    by_line = key.grade(["x", "y", "ignored", "blank", "y"], name="me")
    by_question = key.grade(["x", "y", "y"], name="me")
    assert by_line.evaluation.errors.edits.tolist() == by_question.evaluation.errors.edits.tolist() == [0, 0, 1]
    assert by_line.predictions == ("x", "y", "x", "", "y")
    assert by_line.evaluation.worst[0].line == 5  # lines of the file, blank ones counted
    with pytest.raises(DataError, match=r"^me: expected 5 predictions, one for each line of .*, or 3, .*; got 2$"):
        key.grade(["x", "y"], name="me")


def test_answers_are_compared_in_one_normal_form_and_it_is_named(write):
    key = AnswerKey(write("t.tsv", "a\tcafé\n"), Data())
    report = key.grade(["cafe\u0301"], name="me")
    assert (report.error_rate.value, report.evaluation.normal_form) == (0.0, "NFC")
    raw = AnswerKey(write("t.tsv", "a\tcafé\n"), Data(normal_form="none")).grade(["cafe\u0301"], name="me")
    assert (raw.symbol_error_rate.value, raw.evaluation.normal_form) == (0.5, "as written")
    decomposed = AnswerKey(write("t.tsv", "a\t한\n"), Data(normal_form="NFD")).grade(["할"], name="me")
    assert (decomposed.symbol_error_rate.value, decomposed.evaluation.normal_form) == (1.0, "NFC")


def test_features_make_another_question(write):
    data = Data(columns=("source", "target", "features"))
    key = AnswerKey(write("t.tsv", "hund\thunde\tN;PL\nhund\thund\tN;SG\nhund\thünde\tPL;N\n"), data)
    assert len(key.questions) == 2
    assert key.grade(["hünde", "hund"], name="me").error_rate.value == 0.0


def test_a_model_is_graded_by_what_it_predicts(make_run, tmp_path):
    model = load(make_run())
    model_answers = model.predict(["abc", "de"])
    (tmp_path / "t.tsv").write_text(f"abc\t{model_answers[0]}\nde\tz z z z\nabc\tq\n", encoding="utf-8")
    report = model.evaluate(tmp_path / "t.tsv")
    assert report.predictions == (*model_answers, model_answers[0])
    assert report.error_rate.value == 0.5
    text = "\n".join(report.lines())
    for part in ("beam 5", "by source length", "most frequent edits", "worst", "exposure gap", "seen in training"):
        assert part in text
    assert json.loads(json.dumps(report.to_json()))["error_rate"]["value"] == 0.5


def test_seen_and_unseen_sources_are_told_apart_while_the_training_file_is_there(make_run, write):
    model = load(make_run())
    test = write("t.tsv", "abc\tx\nab\tx\nde\tz\n")
    assert [(group.name, group.num_sources) for group in model.evaluate(test).evaluation.by_training] == [
        ("seen in training", 2),
        ("not seen", 1),
    ]
    write("run.tsv", "changed\tx\n")
    assert model.evaluate(test).evaluation.by_training == ()


def test_what_is_odd_about_the_test_file_is_noted_with_its_line(make_run, write):
    report = load(make_run()).evaluate(write("t.tsv", "abc\tx\n\nab?\tz\n"))
    blank, unknown = report.notes
    assert "1 line left out" in blank
    assert unknown == "1 symbol not seen in training: U+003F ? ×1 (line 3); read as unknown"


# --- exposure gap ----------------------------------------------------------------------------------------------------


class ChainEngine:
    """Writes 4, 5, 6, … after whatever it is fed, and ends after 9."""

    vocabulary_size = 10

    def start(self, sources, *, need_attention=False):
        return ChainStepper(len(sources))


class ChainStepper:
    def __init__(self, num_rows):
        self.num_rows = num_rows
        self.advance(np.ones(num_rows, dtype=np.int64))

    def advance(self, tokens):
        self.next = np.where(tokens < 4, 4, np.where(tokens >= 9, 2, tokens + 1))

    def select(self, rows, sources=None):
        self.next, self.num_rows = self.next[rows], len(rows)

    def top_k(self, k, banned):
        return self.next[:, None], np.zeros((self.num_rows, 1))


def test_exposure_gap_by_hand():
    """One source, target 4 6 7: its own prefix is 4 5 6 (wrong from place 2 on), the true one leads it back at once."""
    gap = exposure_gap(
        ChainEngine(), [np.array([2])] * 2, [np.array([4, 6, 7, 2]), np.array([4, 2])], limits=np.array([4, 4])
    )
    assert gap.own.tolist() == [0, 2, 1, 1]
    assert gap.true.tolist() == [0, 2, 0, 1]
    assert gap.num_labels.tolist() == [2, 2, 1, 1]
    assert gap.gap == pytest.approx(1 / 6)
    assert gap.symbol_error_rate == (1 + 3) / 4  # 4 5 6 7, cut before its end, to 4 6 7 and to 4
    assert "all   66.67 %   50.00 %  +16.67 %  of 6" in "\n".join(gap.lines())


# --- comparison ------------------------------------------------------------------------------------------------------


def test_files_of_predictions_are_compared(write):
    test = write("t.tsv", "a\tx\nb\ty\nc\tz\n")
    contest = compare(test, [write("one.txt", "x\ny\nq\n"), write("two.txt", "q\ny\nq\n")])
    assert [report.error_rate.value for report in contest.reports] == pytest.approx([1 / 3, 2 / 3])
    assert contest.differences[0].error_rate.difference.value == pytest.approx(1 / 3)
    text = "\n".join(contest.lines())
    assert "one.txt" in text
    assert "two.txt, paired" in text
    json.dumps(contest.to_json())


def test_a_run_and_a_file_are_compared_in_the_runs_terms(make_run, write):
    path = make_run()
    test = write("t.tsv", "abc\tx y\nde\tz\n")
    contest = compare(test, [path, write("other.txt", "x y\nz\n")])
    assert contest.reports[0].predictions == load(path).evaluate(test).predictions
    assert contest.reports[1].error_rate.value == 0.0
    assert contest.reports[1].evaluation.unit == "symbol"


def test_other_programs_may_repeat_the_source(write):
    test = write("t.tsv", "a\tx y\nb\tz\nb\tw\n")
    contest = compare(test, [write("one.tsv", "a\tx y\nb\tz\nb\tz\n"), write("two.tsv", "a\t0.9\tx y\nb\t0.1\tw\n")])
    assert [report.error_rate.value for report in contest.reports] == [0.0, 0.0]


def test_what_cannot_be_compared(write):
    test = write("t.tsv", "a\tx\nb\ty\n")
    one = write("one.txt", "x\ny\n")
    with pytest.raises(ConfigError, match="at least two runs or files of predictions, got 1"):
        compare(test, [one])
    with pytest.raises(DataError, match=r"short\.txt: expected 2 predictions, .*; got 1"):
        compare(test, [one, write("short.txt", "x\n")])
    with pytest.raises(DataError, match=r"absent\.txt: no such file"):
        compare(test, [one, "absent.txt"])


@pytest.mark.parametrize(
    ("line", "columns", "units"),
    [
        ("a\tx\n", ("source", "target"), "character"),
        ("a\tX Y\n", ("source", "target"), "space"),
        ("a\tx\tN;PL\n", ("source", "target", "features"), "character"),
        ("a\tx\tN\t7\n", ("source", "target", "features", "-"), "character"),
    ],
)
def test_settings_are_guessed_where_no_run_tells(write, line, columns, units):
    data = guess_data(write("t.tsv", line))
    assert (data.columns, data.target.units) == (columns, units)
