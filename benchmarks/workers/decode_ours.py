"""Decoding with a model of this project, random weights: decode_ours.py torch|numpy MODEL COUNT BEAM BATCH."""

from __future__ import annotations

import sys

import numpy as np
from ours import MODELS
from sizes import LENGTH, SYMBOLS
from timed import serve_rate

from unrolled import config
from unrolled.commands import keep_memory
from unrolled.commands.products import fast_products
from unrolled.decoding import beam_search, greedy
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.text import EOS


def engine(kind: str, model: config.Seq2Seq):
    """Of a model that never ends an output by itself."""
    sizes = Sizes(source=SYMBOLS, features=0, target=SYMBOLS)
    weights = initialise(inventory(model, sizes), 0)
    weights["decoder.output.bias"][EOS] = -1e9
    if kind == "numpy":
        from unrolled import reference
        from unrolled.reference.engine import NumpyEngine

        return NumpyEngine(reference.build(model, sizes, weights), vocabulary_size=SYMBOLS)
    from unrolled import models
    from unrolled.models.engine import TorchEngine

    return TorchEngine(models.build(model, sizes, weights), vocabulary_size=SYMBOLS, is_final=True)


def main() -> None:
    """Serve."""
    keep_memory()
    kind, name = sys.argv[1:3]
    count, beam, batch = map(int, sys.argv[3:])
    found = engine(kind, MODELS[name])
    rng = np.random.default_rng(0)
    sources = [np.append(rng.integers(4, SYMBOLS, LENGTH - 1), EOS) for _ in range(count)]

    def work() -> int:
        for first in range(0, len(sources), batch):
            rows = sources[first : first + batch]
            if beam == 1:
                greedy(found, rows, max_length=LENGTH)
            else:
                beam_search(found, rows, max_length=LENGTH, beam=beam)
        return len(sources)

    with fast_products(kind):
        serve_rate(work)


main()
