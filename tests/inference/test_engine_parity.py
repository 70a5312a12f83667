"""Both engines on 500 words, with every class of architecture, trained a little so that outputs are no accidents."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import unrolled

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

FRENCH = Path(__file__).parents[3] / "shared" / "data" / "sigmorphon2020-g2p" / "fre_train.tsv"
NUM_WORDS = 500
GRU = ["model.encoder.cell=gru", "model.decoder.cell=gru"]
ENCODER, DECODER = (
    [
        f"model.{side}.type=transformer",
        f"model.{side}.d_model=32",
        f"model.{side}.d_ff=48",
        f"model.{side}.num_layers=2",
        f"model.{side}.num_heads=2",
    ]
    for side in ("encoder", "decoder")
)
RECURRENT = {
    side: [f"model.{side}.embedding_dim=16", f"model.{side}.hidden_size=24"] for side in ("encoder", "decoder")
}
MODELS = {
    "lstm, general": [*RECURRENT["encoder"], *RECURRENT["decoder"]],
    "gru, additive, input feeding": [
        *GRU, *RECURRENT["encoder"], *RECURRENT["decoder"], "model.decoder.num_layers=2",
        "model.decoder.attention=additive", "model.decoder.wiring=luong_input_feeding",
    ],
    "bahdanau": [
        *RECURRENT["encoder"], *RECURRENT["decoder"], "model.decoder.attention=additive",
        "model.decoder.wiring=bahdanau",
    ],
    "fixed vector": [
        *GRU, *RECURRENT["encoder"], *RECURRENT["decoder"], "model.decoder.attention=none",
        "model.decoder.vector_every_step=true",
    ],
    "transformer": [*ENCODER, *DECODER, "model.decoder.positions=rotary"],
    "transformer to lstm": [*ENCODER, *RECURRENT["decoder"]],
    "lstm to transformer": [*RECURRENT["encoder"], *DECODER],
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Real words and their sounds where the data is at hand; else words of a made-up language."""
    file = tmp_path_factory.mktemp("pairs") / "words.tsv"
    if FRENCH.exists():
        lines = FRENCH.read_text(encoding="utf-8").splitlines()[: 2 * NUM_WORDS]
    else:
        draw = random.Random(0)
        words = sorted({"".join(draw.choices("aeioubdgklmnprst", k=draw.randint(3, 12))) for _ in range(2 * NUM_WORDS)})
        lines = [f"{word}\t{' '.join(word.upper().replace('KL', 'C'))}" for word in words]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def engines(request, pairs, tmp_path_factory):
    """One run, opened by both engines, and the words."""
    out = tmp_path_factory.mktemp("parity") / "run"
    common = [
        "data.target.units=space",
        "training.max_steps=80",
        "training.max_batch_size=32",
        "training.optimizer.learning_rate=0.01",
    ]
    unrolled.train(pairs, config=unrolled.resolve(overrides=[*common, *request.param]), out=out)
    words = [line.split("\t")[0] for line in pairs.read_text(encoding="utf-8").splitlines()[-NUM_WORDS:]]
    return unrolled.load(out, engine="numpy"), unrolled.load(out, engine="torch"), words


def test_strings_and_scores_are_the_same(engines):
    """Only where two candidates are closer than 1e-5 may rounding choose."""
    mine, other, words = engines
    for beam in (1, 4):
        found = [[best for best, *_ in model.search(words, beam=beam)] for model in (mine, other)]
        assert len({best.log_prob for best in found[0]}) > NUM_WORDS // 2  # the model reads its input
        ties = [pair for pair in zip(*found, strict=True) if pair[0].text != pair[1].text]
        assert len(ties) <= 1
        assert all(a.score == pytest.approx(b.score, abs=1e-5) for a, b in ties)
        for a, b in zip(*found, strict=True):
            assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)


def test_given_outputs_score_the_same(engines):
    mine, other, words = engines
    given = [(word, " ".join(reversed(word.upper()))) for word in words]
    np.testing.assert_allclose(mine.score(given), other.score(given), rtol=0, atol=1e-4)


def test_bfloat16_comes_near(engines):
    """Eight bits of each number: log-probabilities of outputs agree to 2 % of the largest, most strings do."""
    _, other, words = engines
    half = unrolled.load(other.name, engine="bfloat16")
    assert {weight.dtype for weight in half.engine.model.parameters()} == {torch.bfloat16}
    found, expected = ([best for best, *_ in model.search(words, beam=2)] for model in (half, other))
    assert sum(a.text == b.text for a, b in zip(found, expected, strict=True)) > 0.8 * len(words)
    given = [(word, best.text) for word, best in zip(words, expected, strict=True)]
    exact = np.array(other.score(given))
    assert np.abs(half.score(given) - exact).max() < 0.02 * np.abs(exact).max()
    if getattr(half.config.model.decoder, "attention", "") != "none":
        picture = half.search(words[:1], need_attention=True)[0][0].attention
        assert picture.sum(1) == pytest.approx(1.0, abs=0.02)
