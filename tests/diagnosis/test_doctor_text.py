"""Runs of language models under examination, and their pictures."""

from __future__ import annotations

import random

import pytest

from unrolled.config import Config, LanguageModel, RecurrentLanguageDecoder, Text, Training, TransformerDecoder
from unrolled.diagnosis import examine_run
from unrolled.errors import ConfigError
from unrolled.gallery import View, draw
from unrolled.training import train

DECODERS = {
    "recurrent": RecurrentLanguageDecoder(cell="gru", embedding_dim=16, hidden_size=24, dropout=0.0),
    "transformer": TransformerDecoder(d_model=24, d_ff=48, num_layers=1, num_heads=2, dropout=0.0),
}


@pytest.fixture(scope="module", params=DECODERS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def run(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp(kind)
    draw = random.Random(0)
    words = ["one", "two", "three", "four", "five"]
    (folder / "text.txt").write_text(" ".join(draw.choices(words, k=2000)))
    training = Training.model_validate(
        {
            "max_steps": 220,
            "max_batch_size": 8,
            "label_smoothing": 0.0,
            "optimizer": {"learning_rate": 0.01},
            "schedule": {"warmup_steps": 10},
        }
    )
    config = Config(data=Text(context=16), model=LanguageModel(decoder=DECODERS[kind]), training=training)
    return train(folder / "text.txt", config=config, out=folder / "run").path


def test_a_healthy_language_model_has_no_finding(run):
    found = examine_run(run)
    assert not found, str(found)
    assert {"check_causal", "check_stepwise", "check_unknown_symbols", "check_generalisation"} <= {*found.checked}


def test_another_text_shows_what_is_unknown(run, tmp_path):
    (tmp_path / "other.txt").write_text("SIEBEN ACHT NEUN " * 50)
    assert "unknown_symbols" in examine_run(run, data=tmp_path / "other.txt").names


def test_pictures_of_a_language_model(run, kind):
    view = View(run, text="one two")
    drawn = {"recurrent": "gates", "transformer": "heads"}[kind]
    for name in ("training", "gradients", drawn):
        assert draw(name, view).axes
    for name in ("attention", "lengths", "confusions"):
        with pytest.raises(ConfigError, match="is a language model"):
            draw(name, view)
