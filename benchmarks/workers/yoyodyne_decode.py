"""Yoyodyne decoding words with a model that was trained shortly, once: yoyodyne_decode.py MODEL COUNT BEAM BATCH.

Counted is its `predict_step` over batches that were read before; what its command line does beside it is not.
How long its answers are goes to standard error, as from `decode_words.py`.
"""

from __future__ import annotations

import itertools
import sys

import torch
from files import FOLDER, WORDS
from sizes import STEPS
from timed import serve_rate
from yoyodyne.models import BaseModel
from yoyodyne.special import END_IDX
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
    batches = list(itertools.islice(read_data(batch, WORDS).predict_dataloader(), -(-count // batch)))

    with torch.inference_mode():
        answers = model.predict_step(batches[0], 0)
    length = (answers != END_IDX).int().cumprod(dim=1).sum(dim=1).float().mean()
    print(f"{name} of Yoyodyne, greedy: {length:.1f} symbols a word in {answers.shape[1]} steps", file=sys.stderr)
    model.beam_width = beam

    @torch.inference_mode()
    def work() -> int:
        for number, words in enumerate(batches):
            model.predict_step(words, number)
        return sum(map(len, batches))

    serve_rate(work)


main()
