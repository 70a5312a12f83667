"""Yoyodyne decoding words with a model that was trained shortly, once: yoyodyne_decode.py MODEL COUNT BEAM BATCH.

Counted is its `predict_step` over batches that were read before; what its command line does beside it is not.
"""

from __future__ import annotations

import itertools
import sys

import torch
from files import FOLDER, WORDS
from sizes import STEPS
from timed import serve_rate
from yoyodyne.models import BaseModel
from yoyodyne_models import make_model, read_data, trainer


def trained(name: str) -> BaseModel:
    """The model after STEPS training steps; its weights are kept."""
    data = read_data()
    model, file = make_model(name, data), FOLDER / f"yoyodyne-{name}.pt"
    if not file.exists():
        print(f"training Yoyodyne's {name} for {STEPS} steps, once", file=sys.stderr)
        trainer(max_steps=STEPS).fit(model, data)
        torch.save(model.state_dict(), file)
    model.load_state_dict(torch.load(file))
    model.trainer = trainer()
    return model.eval()


def main() -> None:
    """Serve."""
    name, count, beam, batch = sys.argv[1], *map(int, sys.argv[2:])
    model = trained(name)
    model.beam_width = beam
    batches = list(itertools.islice(read_data(batch, WORDS).predict_dataloader(), -(-count // batch)))

    @torch.inference_mode()
    def work() -> int:
        for number, words in enumerate(batches):
            model.predict_step(words, number)
        return sum(map(len, batches))

    serve_rate(work)


main()
