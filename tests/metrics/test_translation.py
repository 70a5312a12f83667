from __future__ import annotations

import sys

import pytest

from unrolled.errors import ConfigError, DataError, MissingExtraError
from unrolled.metrics import bleu, chrf

SENTENCE = "the cat sat on the mat today"


class TestWithSacrebleu:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("sacrebleu")

    @pytest.mark.parametrize("measure", [bleu, chrf])
    def test_best_and_worst(self, measure):
        assert measure([SENTENCE], [[SENTENCE]]).value == pytest.approx(100.0)
        assert measure(["xzq"], [[SENTENCE]]).value == 0.0

    @pytest.mark.parametrize("measure", [bleu, chrf])
    def test_sources_may_have_different_numbers_of_references(self, measure):
        two = measure([SENTENCE, SENTENCE], [["no such words here"], ["nor are here", SENTENCE]])
        one = measure([SENTENCE, SENTENCE], [["no such words here"], ["nor are here"]])
        assert two.value > one.value

    def test_a_value_from_the_formula(self):
        """Precisions of 1- to 4-grams: 6/7, 4/6, 3/5, 2/4; no brevity penalty."""
        found = bleu(["the cat sat on the rug today"], [[SENTENCE]])
        assert found.value == pytest.approx(100 * (6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)

    def test_the_signature_is_reported(self):
        found = bleu([SENTENCE], [[SENTENCE]])
        assert "tok:13a" in found.signature
        assert str(found) == f"BLEU 100.0  {found.signature}"
        assert chrf([SENTENCE], [[SENTENCE]]).name == "chrF2"

    def test_text_that_is_cut_already_is_taken_as_it_is(self, capfd, caplog):
        found = [bleu(["it 's so ."] * 200, [["it 's so ."]] * 200, tokenise=name) for name in ("none", "13a")]
        assert [score.value for score in found] == pytest.approx([100.0, 100.0])
        assert "tok:none" in found[0].signature
        apart = [bleu(["a b c d , e"], [["a b c d, e"]], tokenise=name).value for name in ("none", "13a")]
        assert apart[0] < apart[1] == pytest.approx(100.0)
        assert not caplog.records
        assert capfd.readouterr() == ("", "")

    def test_tokenisations_that_are_not_there_are_refused(self, monkeypatch):
        with pytest.raises(ConfigError, match=r"expected a tokenisation of 13a, char, .*, zh, got 'moses'"):
            bleu(["a"], [["a"]], tokenise="moses")
        monkeypatch.setitem(sys.modules, "MeCab", None)
        with pytest.raises(ConfigError, match="tokenisation ja-mecab is not installed: Japanese tokenization requires"):
            bleu(["a"], [["a"]], tokenise="ja-mecab")


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "^nothing to evaluate: no items$"),
        (["a"], [], "expected references of 1 predictions, got 0"),
        (["a", "b"], [["a"], []], "^prediction 2 has no reference$"),
    ],
)
def test_refusals(predictions, references, message):
    for measure in (bleu, chrf):
        with pytest.raises(DataError, match=message):
            measure(predictions, references)


def test_without_sacrebleu(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("sacrebleu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingExtraError, match=r"measuring BLEU and chrF needs sacrebleu.*unrolled\[translate\]"):
        bleu(["a"], [["a"]])
