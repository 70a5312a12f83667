from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.errors import DataError
from unrolled.metrics import Confusion, References, confusions, count_errors

symbols = st.lists(st.sampled_from(["a", "b", "tʃ", "aː", " "]), max_size=7)


def plain_distance(a, b):
    """Wagner & Fischer 1974: fewest insertions, deletions and substitutions."""
    previous = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        row = [i]
        for j, right in enumerate(b, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (left != right)))
        previous = row
    return previous[-1]


def one(prediction, *answers):
    return count_errors([prediction], References.from_lines(["q"] * len(answers), answers))


@given(prediction=symbols, answer=symbols)
def test_edits_agree_with_the_plain_distance_both_ways(prediction, answer):
    assert one(prediction, answer).edits.tolist() == [plain_distance(answer, prediction)]
    assert one(answer, prediction).edits.tolist() == [plain_distance(answer, prediction)]


@given(prediction=symbols, answers=st.lists(symbols, min_size=1, max_size=5))
def test_the_nearest_answer_has_the_fewest_edits_then_the_fewest_symbols(prediction, answers):
    errors = one(prediction, *answers)
    edits, length = min((plain_distance(answer, prediction), len(answer)) for answer in answers)
    assert (errors.edits.tolist(), errors.num_symbols.tolist()) == ([edits], [length])
    assert list(errors.nearest[0]) in answers
    assert errors.is_wrong.tolist() == [prediction not in answers]


def test_symbols_are_compared_whole():
    assert one(["tʃ", "a"], ["t", "ʃ", "a"]).edits.tolist() == [2]


def test_equal_edits_go_to_the_shorter_answer_whatever_the_order():
    for answers in (["abc", "ab"], ["ab", "abc"]):
        errors = one("abd", *answers)  # 1 edit from either
        assert errors.nearest == (("a", "b"),)
        assert errors.symbol_error_rate == 0.5
    assert one("x", "a", "b").nearest == (("a",),)


def test_rates_are_summed_before_they_are_divided():
    references = References.from_lines(["p", "q", "r"], ["a", "abcd", "abc"])
    errors = count_errors(["b", "abcd", ""], references)
    assert errors.edits.tolist() == [1, 0, 3]
    assert errors.error_rate == pytest.approx(2 / 3)
    assert errors.symbol_error_rate == pytest.approx(4 / 8)
    assert [column.tolist() for column in errors.per_source] == [[1, 0, 1], [1, 1, 1]]
    assert [column.tolist() for column in errors.per_symbol] == [[1, 0, 3], [1, 4, 3]]


def test_answers_that_are_all_empty_are_an_error_and_not_nan():
    assert one("", "").error_rate == 0.0
    with pytest.raises(DataError, match=r"^no reference symbols to score: every reference is empty$"):
        _ = one("a", "").symbol_error_rate


class TestReferences:
    def test_lines_of_one_question_are_one_item_with_several_answers(self):
        keys = [("read", ()), ("lead", ()), ("read", ()), ("read", ("past",)), ("read", ())]
        references = References.from_lines(keys, ["rid", "lid", "red", "red", "rid"])
        assert references.keys == (("read", ()), ("lead", ()), ("read", ("past",)))
        assert references.answers == ((tuple("rid"), tuple("red")), (tuple("lid"),), (tuple("red"),))
        assert (references.first, len(references), references.num_lines, references.num_answers) == ((0, 1, 3), 3, 5, 4)
        assert count_errors(["red", "lit", "rid"], references).is_wrong.tolist() == [False, True, True]

    def test_predictions_come_one_a_line_or_one_a_question(self):
        references = References.from_lines(["a", "b", "a"], ["x", "y", "z"])
        assert references.pick([1, 2, 3]) == [1, 2]
        assert references.pick([1, 2]) == [1, 2]
        with pytest.raises(DataError, match="expected 3, one a line, or 2, one a distinct source, got 4"):
            references.pick([1, 2, 3, 4])

    def test_nothing_and_unequal_columns(self):
        with pytest.raises(DataError, match=r"^nothing to evaluate: no items$"):
            References.from_lines([], [])
        with pytest.raises(DataError, match="expected one a source, 2 in all, got 1"):
            References.from_lines(["a", "b"], ["x"])

    @given(st.lists(st.tuples(st.integers(0, 3), symbols), min_size=1, max_size=12))
    def test_every_line_is_in_its_group_and_nothing_else(self, lines):
        references = References.from_lines([key for key, _ in lines], [target for _, target in lines])
        for key, answers, first in zip(references.keys, references.answers, references.first, strict=True):
            own = [tuple(target) for other, target in lines if other == key]
            assert set(answers) == set(own)
            assert len(set(answers)) == len(answers)
            assert answers[0] == own[0]
            assert next(i for i, (other, _) in enumerate(lines) if other == key) == first


class TestConfusions:
    def test_each_kind_of_edit(self):
        found = confusions([("abc", "axc"), ("abc", "axc"), ("ab", "abb"), ("ab", "b")])
        assert found == (Confusion(2, "b", "x"), Confusion(1, "", "b"), Confusion(1, "a", ""))
        assert [str(item) for item in found] == ["b → x", "extra b", "a missing"]

    def test_spaces_are_visible(self):
        assert str(Confusion(1, " ", "")) == "␣ missing"

    @given(st.lists(st.tuples(symbols, symbols), max_size=8))
    def test_as_many_as_there_are_edits(self, pairs):
        found = confusions(pairs)
        assert sum(item.count for item in found) == sum(plain_distance(a, b) for a, b in pairs)
        assert [item.count for item in found] == sorted((item.count for item in found), reverse=True)
        balance = sum(len(b) - len(a) for a, b in pairs)
        assert sum(item.count * (bool(item.got) - bool(item.expected)) for item in found) == balance


def test_counts_are_arrays_of_whole_numbers():
    errors = one("a", "b")
    assert all(column.dtype == np.int64 for counts in (errors.per_source, errors.per_symbol) for column in counts)
