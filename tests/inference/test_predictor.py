"""Prediction, n-best, scoring: order, blanks, batches, unknown symbols, normal forms, ensembles."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from unrolled.errors import CheckpointError, ConfigError, MissingExtraError, ShapeError, VocabularyError
from unrolled.inference import engines, load, predictor

INFLECTION = ("data.columns=source,target,features", "data.target.units=character")
INFLECTED = "abc\txy\tN;PL\nde\tz\tV\nacd\tyyz\tN;SG\n"
WORDS = ["abc", "de", "a", "edcba" * 3, "acé", "e d", "bbbb", "cab"]


@pytest.fixture
def model(make_run):
    return load(make_run())


def test_a_blank_line_gives_an_empty_output_and_changes_nothing_else(model):
    one, other = model.predict(["abc"])[0], model.predict(["e d"])[0]
    assert one
    assert other
    assert model.predict(["abc", "", "e d", "\t", "\u3000"]) == [one, "", other, "", ""]
    assert model.predict([]) == []


def test_a_space_is_blank_only_where_the_model_does_not_know_it(make_run):
    knows, does_not = load(make_run("knows")), load(make_run("not", pairs="abc\tx\n"))
    assert knows.search([" "])[0][0].source_symbols == (" ", "</s>")
    assert does_not.search([" "])[0][0] is predictor.NOTHING


@pytest.mark.parametrize(("beam", "rows"), [(1, 1), (1, 3), (3, 4), (4, 7), (4, 1024)])
def test_order_and_batch_mates_change_nothing(model, monkeypatch, beam, rows):
    alone = [model.search([word], beam=beam, num_best=beam)[0] for word in WORDS]
    order = np.random.default_rng(rows).permutation(len(WORDS))
    monkeypatch.setattr(predictor, "BATCH_ROWS", rows)
    together = model.search([WORDS[place] for place in order], beam=beam, num_best=beam)
    for place, items in zip(order, together, strict=True):
        assert [item.text for item in items] == [item.text for item in alone[place]]
        expected = [item.log_prob for item in alone[place]]
        assert [item.log_prob for item in items] == pytest.approx(expected, abs=1e-5)


def test_the_same_answer_every_time(make_run):
    path = make_run("run", "model.encoder.dropout=0.5", "model.decoder.dropout=0.5")
    model, again = load(path), load(path)
    first = model.search(["abc"], num_best=3)[0]
    for other in (model, again, model):
        repeated = other.search(["abc"], num_best=3)[0]
        assert [(item.text, item.log_prob, item.score) for item in repeated] == [
            (item.text, item.log_prob, item.score) for item in first
        ]


def test_n_best_are_distinct_sorted_and_scored_as_the_model_scores_them(model):
    for items in model.search(WORDS, beam=6, num_best=6):
        texts, scores = [item.text for item in items], [item.score for item in items if item.is_finished]
        assert len(set(texts)) == len(texts)
        assert scores == sorted(scores, reverse=True)
        assert all(item.target_symbols[-1] == "</s>" for item in items if item.is_finished)
    source = "abc"
    items = [
        item for item in model.search([source], beam=6, num_best=6)[0] if item.is_finished and "\ufffd" not in item.text
    ]
    assert model.score([(source, item.text) for item in items]) == pytest.approx(
        [item.log_prob for item in items], abs=1e-5
    )


def test_length_penalty_of_the_run_is_applied(make_run):
    model = load(make_run("run", "decoding.length_penalty=mean"))
    for items in model.search(WORDS, num_best=2):
        for item in items:
            assert item.score == pytest.approx(item.log_prob / len(item.target_symbols))


def test_outputs_of_one_text_are_merged(make_run):
    """Two spellings of one letter are two outputs of the model and one text."""
    model = load(
        make_run("run", "data.normal_form=NFC", "data.target.units=character", pairs="a\te\u0301\u0308\nb\té\n")
    )
    items = model.search(["ab"], beam=12, num_best=12)[0]
    assert len({item.text for item in items}) == len(items)


def test_beam_of_the_run_is_the_default(make_run):
    model = load(make_run("run", "decoding.beam=1"))
    assert model.predict(WORDS) == model.predict(WORDS, beam=1)
    assert len(model.search(["abc"], num_best=4)[0]) == 4  # n best need a beam that wide


def test_limits_come_from_the_settings(make_run):
    model = load(make_run("run", "decoding.max_length=2"))
    items = [item for found in model.search(WORDS, num_best=3) for item in found]
    assert max(len(item.target_symbols) for item in items) == 2
    assert not all(item.is_finished for item in items)


def test_the_default_limit_is_twice_the_source_and_fifty(make_run):
    model = load(make_run("run", *INFLECTION, pairs=INFLECTED))
    rows = model.encode(["abc", ""], ["N;PL", ""])
    assert model.max_lengths([rows[0], rows[1]]).tolist() == [56, 50]


@pytest.mark.parametrize(("beam", "num_best"), [(0, 1), (2, 0), (-1, 1)])
def test_senseless_searches_are_refused(model, beam, num_best):
    with pytest.raises(ConfigError, match="beam >= 1 and num_best >= 1"):
        model.search(["abc"], beam=beam, num_best=num_best)


# --- symbols ---------------------------------------------------------------------------------------------------------


def test_unknown_symbols_are_told_once_and_read_as_unknown(model):
    sources = ["abc", "abç", "\U0001f600", "çç"]
    assert model.predict(["ab\U0001f600"]) == model.predict(["abß"])
    assert np.isfinite([items[0].log_prob for items in model.search(sources)]).all()
    messages = list(model.inspect(sources).messages())
    assert messages == ["2 symbols not seen in training: U+00E7 ç ×3 (line 2), U+1F600 ×1 (line 3); read as unknown"]


def test_unknown_symbols_may_be_refused(model):
    with pytest.raises(VocabularyError, match=r"^1 symbol not seen in training: U\+00E7 ç ×1 \(line 2\)$"):
        model.predict(["abc", "abç"], allow_unknown=False)
    assert model.predict(["abc"], allow_unknown=False) == model.predict(["abc"])


def test_notes_gather_the_parts_of_an_input(model):
    notes = model.notes()
    model.inspect(["abc", "a?"], notes=notes)
    model.inspect(["?"], notes=notes)
    assert notes.num_lines == 3
    assert list(notes.messages()) == ["1 symbol not seen in training: U+003F ? ×2 (line 2); read as unknown"]
    model.inspect(["!"], lines=[70], notes=notes)
    assert "U+0021 ! ×1 (line 70)" in next(notes.messages())


def test_an_empty_input_is_noted(model):
    assert list(model.notes().messages()) == ["the input is empty"]


def test_casing_that_never_occurred_is_pointed_out(model):
    assert any("bring the input to lower case" in message for message in model.inspect(["ABC"]).messages())


def test_long_lines_are_answered_and_pointed_out(make_run):
    model = load(make_run())
    sources = ["abc", "d" * 19, "d" * 20, "d" * 300]
    assert model.predict(sources)[:1] == model.predict(["abc"])
    assert list(model.inspect(sources).messages()) == [
        "longer than anything in training (20 symbols, end symbol included), so results may be poor: lines 3, 4"
    ]


LEARNED = [
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("type=transformer", "d_model=8", "d_ff=9", "num_layers=1", "positions=learned", "max_positions=21")
] + ["data.source.max_length=21", "data.target.max_length=21"]


@pytest.mark.parametrize("engine", ["torch", "numpy"])
@pytest.mark.parametrize("beam", [1, 3])
def test_lines_beyond_learned_positions_are_named_and_answered_by_nothing(make_run, engine, beam):
    """Tables of 21 positions, one of them for the end symbol: 20 symbols fit and 21 do not."""
    model = load(make_run("run", *LEARNED), engine=engine)
    sources = ["abc", "d" * 20, "d" * 21, "", "d" * 200, "de"]
    answers = model.search(sources, beam=beam)
    for place in (0, 1, 5):
        [[alone]], [found] = model.search([sources[place]], beam=beam), answers[place]
        assert (found.text, found.log_prob) == (alone.text, pytest.approx(alone.log_prob, rel=2e-5))
        assert len(found.target_symbols) <= 21
    assert [answers[place] for place in (2, 4)] == [[predictor.UNREADABLE]] * 2
    assert predictor.UNREADABLE.text == ""
    assert not predictor.UNREADABLE.is_finished
    assert list(model.inspect(sources).messages()) == [
        "longer than anything in training (20 symbols, end symbol included), so results may be poor: line 2",
        "longer than the model can read (21 symbols, end symbol included), so answered by nothing: lines 3, 5",
    ]


def test_pairs_beyond_learned_positions_have_probability_zero(make_run, tmp_path):
    model = load(make_run("run", *LEARNED))
    pairs = [("abc", "x"), ("d" * 21, "x"), ("abc", " ".join("x" * 20)), ("abc", " ".join("x" * 21))]
    assert np.isneginf(model.score(pairs)).tolist() == [False, True, False, True]
    test = tmp_path / "test.tsv"
    test.write_text("".join(f"{source}\t{target}\n" for source, target in pairs[1:2]))
    assert model.evaluate(test).exposure is None
    test.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    assert model.evaluate(test).exposure.num_labels[0] == 1


def test_features_and_padding_need_no_learned_positions(make_run):
    inflection = [*LEARNED, *INFLECTION]
    model = load(make_run("run", *inflection, pairs=INFLECTED))
    sources, features = ["d" * 20, "abc"], ["N;PL", "N;SG;PL;V"]
    together = model.search(sources, features)
    for place, (found, *_) in enumerate(together):
        (alone, *_), *_ = model.search([sources[place]], [features[place]])
        assert found.log_prob == pytest.approx(alone.log_prob, abs=1e-5)
    on_numpy = load(model.name, engine="numpy").search(sources, features)
    assert [items[0].log_prob for items in on_numpy] == pytest.approx(
        [items[0].log_prob for items in together], abs=1e-4
    )


def test_both_spellings_of_a_letter_are_one(model):
    composed, decomposed = model.search(["acé", "ace\u0301"], num_best=3)
    assert [item.text for item in composed] == [item.text for item in decomposed]
    assert [item.log_prob for item in composed] == pytest.approx([item.log_prob for item in decomposed], abs=1e-6)
    assert not list(model.inspect(["ace\u0301"]).messages())


def test_decomposed_models_write_composed_letters(make_run):
    overrides = ("data.normal_form=NFD", "data.target.units=character", "decoding.beam=1")
    model = load(make_run("run", *overrides, pairs="한국\té\nab\te\u0301o\u0308\n"))
    assert "ᄒ" in model.search(["한"])[0][0].source_symbols
    for items in model.search(["ab", "한국"], beam=5, num_best=5):
        assert all("e\u0301" not in item.text for item in items)


# --- features --------------------------------------------------------------------------------------------------------


def test_features_decide(make_run):
    model = load(make_run("run", *INFLECTION, pairs=INFLECTED))
    plural, singular, none = model.search(["abc"] * 3, ["N;PL", ("N", "SG"), ""], num_best=2)
    assert len({plural[0].log_prob, singular[0].log_prob, none[0].log_prob}) == 3
    assert model.search(["abc"], ["N;PL"])[0][0].log_prob == pytest.approx(plural[0].log_prob, abs=1e-6)
    assert plural[0].source_symbols == ("a", "b", "c", "</s>", "N", "PL")
    assert list(model.inspect(["abc"], ["N;DU"]).messages()) == [
        "1 symbol not seen in training: feature DU ×1 (line 1); read as unknown"
    ]


def test_features_must_fit(make_run, model):
    with pytest.raises(VocabularyError, match="trained without a features column"):
        model.predict(["abc"], ["N;PL"])
    inflection = load(make_run("features", *INFLECTION, pairs=INFLECTED))
    with pytest.raises(ShapeError, match="expected one entry a source, 2, got 1"):
        inflection.predict(["abc", "de"], ["N;PL"])


def test_one_text_is_not_a_list_of_texts(model):
    with pytest.raises(ShapeError, match="expected a list of texts, got one text"):
        model.predict("abc")


# --- scores ----------------------------------------------------------------------------------------------------------


def test_scores_keep_order_whatever_the_lengths(model):
    pairs = [("abc", "x y"), ("e" * 30, "z"), ("a", "x y z x y z"), ("de", "")]
    assert model.score(pairs) == pytest.approx([model.score([pair])[0] for pair in pairs], abs=1e-5)
    assert model.score([]) == []


# --- attention -------------------------------------------------------------------------------------------------------


def test_attention_fits_the_symbols_and_changes_nothing(model):
    plain = model.search(WORDS, num_best=2)
    for with_it, without in zip(model.search(WORDS, num_best=2, need_attention=True), plain, strict=True):
        for shown, hidden in zip(with_it, without, strict=True):
            assert (shown.text, shown.log_prob, hidden.attention) == (hidden.text, hidden.log_prob, None)
            assert shown.attention.shape == (len(shown.target_symbols), len(shown.source_symbols))
            np.testing.assert_allclose(shown.attention.sum(axis=1), 1.0, atol=1e-5)


def test_a_model_without_attention_says_so(make_run):
    path = make_run("run", "model.decoder.attention=none")
    with pytest.raises(ConfigError, match=r"has no attention to show.*model\.decoder\.attention=none"):
        load(path).search(["abc"], need_attention=True)


# --- loading ---------------------------------------------------------------------------------------------------------


def test_an_ensemble_is_the_mean_of_distributions(make_run):
    paths = [make_run("one", seed=1), make_run("two", seed=2)]
    pairs = [("abc", "")]  # one label, so that means of symbols are means of sequences
    members = [load(path).score(pairs)[0] for path in paths]
    assert load(paths).score(pairs)[0] == pytest.approx(np.log(np.exp(members).mean()), abs=1e-6)
    assert load([paths[0]] * 2).predict(WORDS) == load(paths[0]).predict(WORDS)


def test_members_must_mean_the_same_symbols(make_run):
    one, other = make_run("one"), make_run("other", pairs="fgh\tx y\nij\tz\nfké\ty y z\nf i\tx\n")
    with pytest.raises(VocabularyError, match=r"other has another source vocabulary than .*one"):
        load([one, other])
    with pytest.raises(VocabularyError, match="has another normal form than"):
        load([one, make_run("form", "data.normal_form=none")])


def test_what_cannot_be_loaded(tmp_path, make_run):
    with pytest.raises(ConfigError, match="expected at least one run folder, got none"):
        load([])
    with pytest.raises(CheckpointError, match="is missing; expected a run folder"):
        load(tmp_path / "absent")
    with pytest.raises(ConfigError, match="expected auto or torch or bfloat16 or numpy, got 'jax'"):
        load(make_run(), engine="jax")
    with pytest.raises(ConfigError, match="numpy engine computes on the CPU only"):
        load(make_run("other"), engine="numpy", device="cuda")
    with pytest.raises(ConfigError, match="device tpu is not there"):
        load(make_run("third"), engine="torch", device="tpu")


@pytest.mark.parametrize(
    ("seed", "overrides"),
    [
        (1, ()),
        (4, ("model.encoder.cell=gru", "model.decoder.attention=none", "model.encoder.num_layers=2")),
        (9, ("model.encoder.type=transformer", "model.encoder.d_model=8", "model.encoder.d_ff=9")),
        (5, ("model.decoder.type=transformer", "model.decoder.d_model=8", "model.decoder.positions=rotary")),
    ],
)
def test_both_engines_predict_the_same(make_run, seed, overrides):
    from unrolled.models.engine import TorchEngine

    path = make_run("run", *overrides, seed=seed)
    packed, plain, exact = (load(path, engine=engine) for engine in ("torch", "torch", "numpy"))
    plain.engine = TorchEngine(plain.engine.model, vocabulary_size=plain.engine.vocabulary_size)
    pairs = [("abc", "x y"), ("e", "z")]
    assert len(set(exact.predict(WORDS))) > 2
    for model, rel in ((plain, 2e-5), (packed, 5e-5)):  # packed products add in another order
        for ours, theirs in zip(model.search(WORDS, num_best=3), exact.search(WORDS, num_best=3), strict=True):
            assert [item.text for item in ours] == [item.text for item in theirs]
            expected = pytest.approx([item.log_prob for item in theirs], rel=rel, abs=1e-5)
            assert [item.log_prob for item in ours] == expected
        assert model.score(pairs) == pytest.approx(exact.score(pairs), rel=rel, abs=1e-5)


WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
import unrolled
print(unrolled.load(sys.argv[1]).predict(sys.argv[2:]))
"""


def test_prediction_works_where_torch_is_not_installed(make_run):
    path = make_run()
    assert len(set(load(path).predict(WORDS))) > 2
    command = [sys.executable, "-c", WITHOUT_TORCH, str(path), *WORDS]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout == f"{load(path, engine='numpy').predict(WORDS)}\n"


def test_without_torch_numpy_is_chosen(monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert engines.choose_engine("auto") == "numpy"
    with pytest.raises(MissingExtraError, match=r"the torch engine needs torch.*pip install 'unrolled\[train\]'"):
        engines.choose_engine("torch")
    with pytest.raises(MissingExtraError, match="the bfloat16 engine needs torch"):
        engines.choose_engine("bfloat16")
