"""Run folders with random weights: nothing is learnt, but every rule of prediction can be checked."""

from __future__ import annotations

import pytest

from unrolled.parameters import Sizes, initialise, inventory
from unrolled.runs import DataDigest, Environment, FileDigest, Run
from unrolled.settings import resolve
from unrolled.text import EOS, Codec, read_pairs

PAIRS = "abc\tx y\nde\tz\nacé\ty y z\ne d\tx\n"
SMALL = [
    "data.target.units=space",
    "model.encoder.embedding_dim=5",
    "model.encoder.hidden_size=7",
    "model.decoder.embedding_dim=5",
    "model.decoder.hidden_size=6",
]


@pytest.fixture
def make_run(tmp_path):
    """Write a run folder: `make_run(name, *overrides, pairs=..., seed=...)`."""

    def make(name="run", *overrides, pairs=PAIRS, seed=1, spread=2.0):
        file = tmp_path / f"{name}.tsv"
        file.write_text(pairs, encoding="utf-8")
        switched = tuple(
            name.removesuffix("type=transformer") for name in overrides if name.endswith("type=transformer")
        )
        small = [text for text in SMALL if not switched or not text.startswith(switched)]
        config = resolve(overrides=[*small, *overrides])
        read = read_pairs(file, config.data)
        codec = Codec.fit(config.data, read.sources, read.targets, read.features)
        sizes = Sizes(len(codec.source), codec.source.num_features, len(codec.target))
        run = Run.create(
            tmp_path / name,
            config=config,
            vocabulary=codec.to_json(),
            data=DataDigest(FileDigest(str(file), read.sha256, len(read)), None, longest_source=20),
            environment=Environment({}, "", "cpu", threads=1, processes=1, matrix_mode="default"),
        )
        weights = initialise(inventory(config.model, sizes), seed)
        weights = {key: spread * array for key, array in weights.items()}
        weights["decoder.output.weight"] *= 2.0  # where symbols are about equally likely, the empty answer is best
        weights["decoder.output.bias"][EOS] -= 2.0
        run.write_weights(weights)
        return run.path

    return make
