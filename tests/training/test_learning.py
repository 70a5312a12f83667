"""Each kind of model learns to reverse or to copy short strings that it has not seen."""

import numpy as np
import pytest
import torch

from unrolled import config, models
from unrolled.decoding import greedy
from unrolled.models.engine import TorchEngine
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.text import Codec, Examples, collate, plan_batches
from unrolled.training import PairObjective, Stepper, rate_factor

SMALL = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout": 0.0}


def encoder(**settings):
    return config.RecurrentEncoder(embedding_dim=16, hidden_size=24, dropout=0.0, **settings)


def decoder(**settings):
    return config.RecurrentDecoder(embedding_dim=16, hidden_size=48, dropout=0.0, **settings)


MODELS = {
    "lstm dot": (encoder(), decoder(attention="dot")),
    "gru scaled dot": (encoder(cell="gru"), decoder(cell="gru", attention="scaled_dot")),
    "lstm general": (encoder(), decoder()),
    "lstm none": (encoder(), decoder(attention="none")),
    "rnn additive": (encoder(cell="rnn"), decoder(cell="rnn", attention="additive")),
    "lstm input feeding": (encoder(), decoder(wiring="luong_input_feeding")),
    "gru bahdanau": (encoder(cell="gru"), decoder(cell="gru", attention="additive", wiring="bahdanau")),
    "transformer": (config.TransformerEncoder(**SMALL), config.TransformerDecoder(**SMALL)),
    "rotary, post-norm": (
        config.TransformerEncoder(**SMALL, positions="rotary"),
        config.TransformerDecoder(**SMALL, positions="rotary", norm="post"),
    ),
    "transformer to lstm": (config.TransformerEncoder(**SMALL), decoder()),
}


def words(count, seed, letters="abcde", lengths=(2, 6)):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(letters), size=rng.integers(*lengths))) for _ in range(count)]


def right_after(steps, settings, answer, sources, others):
    """Share of those of `others` that training did not have for which a model gives the answer."""
    targets = [answer(word) for word in sources]
    codec = Codec.fit(config.Data(), sources, targets)
    examples = Examples(codec.encode_sources(sources), codec.encode_targets(targets), np.arange(len(sources)))
    sizes = Sizes(len(codec.source), 0, len(codec.target))
    model = models.build(settings, sizes, initialise(inventory(settings, sizes), 1))
    training = config.Training(max_steps=steps, label_smoothing=0.0, optimizer=config.Optimizer(learning_rate=5e-3))
    stepper = Stepper(model, PairObjective(training, device=torch.device("cpu")), training.optimizer)
    schedule = config.Schedule(warmup_steps=40)
    lengths = examples.source.lengths, examples.target.lengths
    plan = [
        rows
        for epoch in range(20)
        for rows in plan_batches(*lengths, batch_tokens=9999, max_batch_size=64, seed=0, epoch=epoch)
    ]
    for step, rows in enumerate(plan[:steps], start=1):
        stepper.launch([collate(examples, rows)], rate_factor(schedule, step, steps), step=step)

    unseen = sorted(set(others) - set(sources))
    assert len(unseen) > 100
    engine = TorchEngine(model, vocabulary_size=sizes.target)
    found = greedy(engine, [codec.encode_source(word) for word in unseen], max_length=20)
    return np.mean([codec.decode_target(one.ids) == answer(word) for one, word in zip(found, unseen, strict=True)])


TASKS = [(name, "reverse") for name in MODELS] + [(name, "copy") for name in ("lstm none", "transformer")]
LEAST = {"lstm none": 0.6, "gru scaled dot": 0.7}  # learnt more slowly; by chance it would be near 0


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_it_learns(name, task):
    answer = {"copy": str, "reverse": lambda word: word[::-1]}[task]
    settings = config.Seq2Seq(encoder=MODELS[name][0], decoder=MODELS[name][1])
    assert right_after(350, settings, answer, words(1500, 0), words(300, 1)) > LEAST.get(name, 0.85)


def test_rotary_attention_keeps_its_place_where_symbols_repeat():
    rotary = {**SMALL, "positions": "rotary"}
    settings = config.Seq2Seq(encoder=config.TransformerEncoder(**rotary), decoder=config.TransformerDecoder(**rotary))
    two_letters = {"letters": "ab", "lengths": (8, 13)}
    right = right_after(150, settings, str, words(1500, 0, **two_letters), words(300, 1, **two_letters))
    assert right > 0.9  # without positions in the attention to the source it is below 0.05
