from __future__ import annotations

import json
import time
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.errors import DataError
from unrolled.metrics import Group, Item, References, compare, evaluate

KEYS = [("read", ()), ("lead", ("noun",)), ("read", ()), ("do", ())]
TARGETS = [["r", "iː", "d"], ["l", "ɛ", "d"], ["r", "ɛ", "d"], ["d", "uː"]]
PREDICTIONS = [["r", "ɛ", "d"], ["l", "iː", "d"], ["t"]]


@pytest.fixture
def references():
    return References.from_lines(KEYS, TARGETS)


@pytest.fixture
def evaluation(references):
    return evaluate(
        PREDICTIONS,
        references,
        normal_form="NFC",
        unit="phoneme",
        source_lengths=[4, 4, 2],
        is_seen=[True, False, False],
    )


def test_rates_and_counts(evaluation):
    assert evaluation.error_rate.value == pytest.approx(2 / 3)
    assert evaluation.accuracy == pytest.approx(1 / 3)
    assert evaluation.symbol_error_rate.value == pytest.approx(3 / 8)
    assert evaluation.whole == Group("all", num_sources=3, num_wrong=2, num_edits=3, num_symbols=8)
    assert (evaluation.num_lines, evaluation.num_answers) == (4, 4)


def test_parts(evaluation):
    assert evaluation.by_length == (Group("2", 1, 1, 2, 2), Group("4", 2, 1, 1, 6))
    assert evaluation.by_training == (Group("seen in training", 1, 0, 0, 3), Group("not seen", 2, 2, 3, 5))
    assert evaluation.by_length[1].error_rate == 0.5


def test_the_worst_come_first_and_right_ones_never(evaluation):
    assert evaluation.worst == (
        Item(4, "do", ("t",), ("d", "uː"), 2),
        Item(2, "lead noun", ("l", "iː", "d"), ("l", "ɛ", "d"), 1),
    )


def test_the_report_for_people(evaluation):
    assert evaluation.text() == "\n".join(evaluation.lines())
    low, high = (100 * value for value in (evaluation.symbol_error_rate.low, evaluation.symbol_error_rate.high))
    assert evaluation.lines() == [
        "3 sources, 4 distinct answers, 4 lines; normal form NFC; 95 % intervals over sources",
        "wrong sources   66.67 % [0.00, 100.00]  2 of 3",
        f"phoneme errors  37.50 % [{low:.2f}, {high:.2f}]  3 edits to 8 symbols",
        "",
        "by source length: share wrong",
        "  2  100.00 %  1 of 1",
        "  4   50.00 %  1 of 2",
        "",
        "by occurrence in the training data: share wrong",
        "  seen in training    0.00 %  0 of 1",
        "          not seen  100.00 %  2 of 2",
        "",
        "most frequent edits (answer → prediction)",
        *(f"  1 × {edit}" for edit in _edits()),
        "",
        "worst (edits, line, source: prediction | nearest answer)",
        "  2  4  do: t | d uː",
        "  1  2  lead noun: l iː d | l ɛ d",
    ]
    short = evaluation.lines(num_confusions=1, num_worst=1)
    assert sum(" × " in line for line in short) == 1
    assert sum(" | " in line for line in short) == 2


def _edits():
    """Of `d uː → t` either symbol may be the one that is missing."""
    from rapidfuzz.distance import Levenshtein

    first = Levenshtein.editops(["d", "uː"], ["t"])[0].tag
    return ["d missing", "uː → t", "ɛ → iː"] if first == "delete" else ["d → t", "uː missing", "ɛ → iː"]


def test_everything_right_is_a_short_report():
    found = evaluate(["ab"], References.from_lines(["q"], ["ab"]), normal_form="NFD")
    assert found.lines() == [
        "1 sources, 1 distinct answers, 1 lines; normal form NFD; 95 % intervals over sources",
        "wrong sources  0.00 % [0.00, 0.00]  0 of 1",
        "symbol errors  0.00 % [0.00, 0.00]  0 edits to 2 symbols",
    ]
    assert (found.worst, found.confusions, found.by_length, found.by_training) == ((), (), (), ())


def test_symbols_of_one_character_are_written_together_and_nothing_is_visible():
    found = evaluate(["ab", ""], References.from_lines(["p", "q"], ["ax", "cd"]), normal_form="NFC", sources=["P", "Q"])
    assert found.lines()[-2:] == ["  2  2  Q: (empty) | cd", "  1  1  P: ab | ax"]


def test_json_holds_it_all(evaluation):
    found = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    assert found["error_rate"]["value"] == evaluation.error_rate.value
    assert found["symbol_error_rate"]["high"] == evaluation.symbol_error_rate.high
    assert (found["normal_form"], found["unit"], found["num_lines"], found["num_answers"]) == ("NFC", "phoneme", 4, 4)
    assert found["whole"]["num_wrong"] == 2
    assert [part["error_rate"] for part in found["by_length"]] == [1.0, 0.5]
    assert [part["name"] for part in found["by_training"]] == ["seen in training", "not seen"]
    assert found["worst"][0] == {
        "line": 4,
        "source": "do",
        "prediction": ["t"],
        "nearest": ["d", "uː"],
        "edits": 2,
    }
    assert sum(item["count"] for item in found["confusions"]) == 3


def test_columns_come_one_a_line_or_one_a_source(references, evaluation):
    by_line = evaluate(
        [PREDICTIONS[0], PREDICTIONS[1], ["ignored"], PREDICTIONS[2]],
        references,
        normal_form="NFC",
        unit="phoneme",
        source_lengths=[4, 4, 4, 2],
        is_seen=[True, False, True, False],
    )
    assert by_line == evaluation
    with pytest.raises(DataError, match="expected 4, one a line, or 3, one a distinct source, got 2"):
        evaluate(PREDICTIONS[:2], references, normal_form="NFC")


@given(st.lists(st.integers(0, 40), min_size=1, max_size=80))
def test_groups_by_length_part_the_sources(lengths):
    references = References.from_lines(list(range(len(lengths))), [["a"] * (1 + n % 3) for n in lengths])
    predictions = [["a"] * (1 + n % 2) for n in lengths]
    found = evaluate(predictions, references, normal_form="NFC", source_lengths=lengths, resamples=2)
    assert 1 <= len(found.by_length) <= 8
    for count in ("num_sources", "num_wrong", "num_edits", "num_symbols"):
        assert sum(getattr(part, count) for part in found.by_length) == getattr(found.whole, count)
    edges = [[int(edge) for edge in part.name.split("–")] for part in found.by_length]
    assert edges[0][0] == min(lengths)
    assert edges[-1][-1] == max(lengths)
    for part, edge in zip(found.by_length, edges, strict=True):
        assert part.num_sources == sum(edge[0] <= n <= edge[-1] for n in lengths) > 0


def test_eight_groups_of_equally_many_sources():
    references = References.from_lines(list(range(16)), ["a"] * 16)
    found = evaluate(["a"] * 16, references, normal_form="NFC", source_lengths=list(range(1, 17)))
    names = ["1–2", "3–4", "5–6", "7–8", "9–10", "11–12", "13–14", "15–16"]
    assert [(part.name, part.num_sources) for part in found.by_length] == [(name, 2) for name in names]


def test_results_are_values(evaluation):
    """Frozen, and shown without their per-source arrays."""
    assert "errors=" not in repr(evaluation)
    assert "references=" not in repr(evaluation)
    comparison = compare(evaluation, evaluation)
    values = (evaluation, comparison, comparison.error_rate, evaluation.error_rate, evaluation.whole)
    for value in (*values, evaluation.worst[0], evaluation.confusions[0], evaluation.errors, evaluation.references):
        with pytest.raises(FrozenInstanceError):
            value.num_lines = 1


class TestCompare:
    def test_two_systems(self, references, evaluation):
        better = evaluate([*PREDICTIONS[:2], ["d", "uː"]], references, normal_form="NFC")
        found = compare(evaluation, better)
        assert found.num_sources == 3
        assert (found.error_rate.first, found.error_rate.second) == pytest.approx((2 / 3, 1 / 3))
        assert found.symbol_error_rate.difference.value == pytest.approx(1 / 8 - 3 / 8)
        assert (found.only_first_wrong, found.only_second_wrong, found.both_wrong) == (1, 0, 1)
        back = compare(better, evaluation)
        assert (back.only_first_wrong, back.only_second_wrong, back.both_wrong) == (0, 1, 1)
        assert found.lines() == [
            f"wrong sources  66.67 % → 33.33 %  difference {found.error_rate}",
            f"symbol errors  37.50 % → 12.50 %  difference {found.symbol_error_rate}",
            "of 3 sources only the first is wrong in 1, only the second in 0, both in 1",
        ]
        values = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert values["error_rate"]["difference"]["value"] == pytest.approx(-1 / 3)

    def test_other_sources(self, evaluation):
        other = evaluate(["a"], References.from_lines(["q"], ["a"]), normal_form="NFC")
        with pytest.raises(DataError, match="needs the same sources in the same order, got 3 and 1 that differ"):
            compare(evaluation, other)


def test_twelve_thousand_words_in_about_a_second():
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, 97 + rng.integers(26, size=n))) for n in rng.integers(3, 12, size=12_000)]
    predictions = [word[:-1] if i % 3 == 0 else word for i, word in enumerate(words)]
    start = time.process_time()
    references = References.from_lines(list(enumerate(words)), words)
    found = evaluate(predictions, references, normal_form="NFC", source_lengths=list(map(len, words)))
    assert time.process_time() - start < 2.0
    assert found.error_rate.value == pytest.approx(1 / 3)
