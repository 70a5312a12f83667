"""Decoding with a model of this project, random weights: decode_ours.py torch|numpy lstm|transformer BEAM BATCH."""

from __future__ import annotations

import sys

import numpy as np
from sizes import COUNT, LENGTH, SYMBOLS
from timed import serve

from unrolled import config
from unrolled.decoding import beam_search, greedy
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.text import EOS

MODELS = {
    "lstm": config.Seq2Seq(
        encoder=config.RecurrentEncoder(embedding_dim=256, hidden_size=256),
        decoder=config.RecurrentDecoder(embedding_dim=256, hidden_size=256),
    ),
    "transformer": config.Seq2Seq(encoder=config.TransformerEncoder(), decoder=config.TransformerDecoder()),
}


def engine(kind: str, model: config.Seq2Seq):
    """Of a model that never ends an output by itself."""
    sizes = Sizes(source=SYMBOLS, features=0, target=SYMBOLS)
    weights = initialise(inventory(model, sizes), 0)
    weights["decoder.output.bias"][EOS] = -1e9
    if kind == "numpy":
        from unrolled import reference
        from unrolled.reference.engine import NumpyEngine

        return NumpyEngine(reference.build(model, sizes, weights), vocabulary_size=SYMBOLS)
    import torch

    from unrolled import models
    from unrolled.models.engine import TorchEngine

    return TorchEngine(models.build(model, sizes, weights).eval(), vocabulary_size=SYMBOLS, device=torch.device("cpu"))


def main() -> None:
    """Serve."""
    kind, name, beam, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    found = engine(kind, MODELS[name])
    rng = np.random.default_rng(0)
    sources = [np.append(rng.integers(4, SYMBOLS, LENGTH), EOS) for _ in range(COUNT[beam])]

    def work() -> int:
        for first in range(0, len(sources), batch):
            rows = sources[first : first + batch]
            if beam == 1:
                greedy(found, rows, max_length=LENGTH)
            else:
                beam_search(found, rows, max_length=LENGTH, beam=beam)
        return len(sources)

    if kind == "torch":
        from unrolled.training import matrix_mode, probe_matrix_mode

        with matrix_mode(probe_matrix_mode()):
            serve(work)
    else:
        serve(work)


main()
