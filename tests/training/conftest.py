import random

import numpy as np
import pytest
from sessions import Recorder

from unrolled import models, parameters
from unrolled.config import Config, Optimizer, RecurrentDecoder, RecurrentEncoder, Schedule, Seq2Seq, Training
from unrolled.parameters import Sizes
from unrolled.text import BOS, EOS, PAD, Batch, Examples, Ragged
from unrolled.training import train

SIZES = Sizes(source=9, features=0, target=9)


def small(dropout):
    """Settings of a small model."""
    return Seq2Seq(
        encoder=RecurrentEncoder(cell="gru", embedding_dim=8, hidden_size=8, dropout=dropout),
        decoder=RecurrentDecoder(cell="gru", embedding_dim=8, hidden_size=8, dropout=dropout),
    )


@pytest.fixture(scope="session")
def build():
    """Makes the same small model each time."""

    def make(dropout=0.3, seed=0, model=None):
        model = model or small(dropout)
        return models.build(model, SIZES, parameters.initialise(parameters.inventory(model, SIZES), seed))

    return make


@pytest.fixture(scope="session")
def make_examples():
    """Random sources of letters 4–8; targets are the sources reversed."""

    def make(count, seed=0):
        generator = np.random.default_rng(seed)
        rows = [generator.integers(4, 9, generator.integers(2, 7)) for _ in range(count)]
        source = Ragged.from_rows([[*row, EOS] for row in rows])
        target = Ragged.from_rows([[*row[::-1], EOS] for row in rows])
        return Examples(source, target, np.arange(count))

    return make


@pytest.fixture(scope="session")
def make_batch():
    """A batch of labels given as lists, `PAD` where there is none."""

    def make(*labels):
        labels = np.array(labels)
        source = np.full((len(labels), 3), 5)
        inputs = np.concatenate([np.full((len(labels), 1), BOS), labels[:, :-1]], axis=1)
        return Batch(source, source != PAD, inputs, labels, np.arange(len(labels)))

    return make


@pytest.fixture(scope="session")
def settings():
    """Training settings for a few quick steps."""

    def make(**changes):
        base = {
            "max_steps": 20,
            "batch_tokens": 128,
            "label_smoothing": 0.1,
            "optimizer": Optimizer(learning_rate=0.01),
            "schedule": Schedule(warmup_steps=5),
        }
        return Training(**(base | changes))

    return make


@pytest.fixture(scope="session")
def make_config(settings):
    """A whole config around them."""

    def make(dropout=0.3, **changes):
        return Config(model=small(dropout), training=settings(**changes))

    return make


@pytest.fixture(scope="session")
def make_pairs():
    """Writes a file of distinct words and the words reversed."""

    def make(path, count=200, letters="abcde", seed=0):
        draw = random.Random(seed)
        words = {}
        while len(words) < count:
            words["".join(draw.choices(letters, k=draw.randint(2, 6)))] = None
        path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
        return path

    return make


# --- whole sessions ---


@pytest.fixture(scope="session")
def pairs(make_pairs, tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="session")
def config(make_config):
    return make_config(
        max_steps=40, batch_tokens=256, evaluate_every=7, average="best", average_count=2, patience=50, save_every=17
    )


@pytest.fixture(scope="session")
def whole(pairs, config, tmp_path_factory):
    """A run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    seen = Recorder()
    outcome = train(pairs, config=config, out=path, listeners=[seen], device="cpu")
    return path, outcome, seen
