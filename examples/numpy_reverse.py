"""Learn to reverse strings of 8 symbols with NumPy alone: an attention model, its backward pass, AdamW.

    python examples/numpy_reverse.py [--steps 600]

Prints the loss curve and how many of 1,000 unseen strings come out exactly reversed.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np

from unrolled import reference
from unrolled.config import RecurrentDecoder, RecurrentEncoder, Seq2Seq
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.reference.optimizers import adamw, adamw_start, clip
from unrolled.text import Batch

BOS, EOS, FIRST = 1, 2, 4  # ids below 4 are special
SYMBOLS, LENGTH = 10, 8
SIZES = Sizes(source=FIRST + SYMBOLS, features=0, target=FIRST + SYMBOLS)
SETTINGS = Seq2Seq(
    encoder=RecurrentEncoder(embedding_dim=32, hidden_size=32),
    decoder=RecurrentDecoder(embedding_dim=32, hidden_size=64, attention="dot"),
)


def draw(rng, batch_size):
    """Random strings and their reverses; the end symbol closes both."""
    strings = rng.integers(FIRST, FIRST + SYMBOLS, (batch_size, LENGTH))
    end = np.full((batch_size, 1), EOS)
    source, labels = np.concatenate([strings, end], axis=1), np.concatenate([strings[:, ::-1], end], axis=1)
    inputs = np.concatenate([np.full_like(end, BOS), labels[:, :-1]], axis=1)
    return Batch(source, np.ones_like(source, dtype=bool), inputs, labels, np.arange(batch_size))


def greedy(model, batch):
    """Feed back the most probable symbol, step by step."""
    memory = model.encode(batch.source, batch.source_mask)
    state = model.initial_state(memory, len(batch.source))
    tokens, outputs = batch.inputs[:, :1], []
    for _ in range(batch.labels.shape[1]):
        logits, state, _ = model.decode(tokens, memory, state)
        tokens = logits.argmax(axis=2)
        outputs.append(tokens)
    return np.concatenate(outputs, axis=1)


def train(steps, *, batch_size=64, learning_rate=5e-3, seed=0):
    """Weights after training; the loss is printed along the way."""
    rng = np.random.default_rng(seed)
    weights = dict(initialise(inventory(SETTINGS, SIZES), seed))
    state, begin = adamw_start(weights), time.perf_counter()
    for step in range(1, steps + 1):
        model = reference.build(SETTINGS, SIZES, weights)
        loss, num_labels, gradients = model.loss_and_gradients(draw(rng, batch_size))
        mean = {name: gradient / num_labels for name, gradient in gradients.items()}
        rate = learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        weights, state = adamw(weights, clip(mean, 1.0).gradients, state, learning_rate=rate)
        if step == 1 or step % max(1, steps // 15) == 0:
            bar = "█" * round(20 * loss / num_labels)
            print(f"step {step:5d}  {time.perf_counter() - begin:5.1f} s  {loss / num_labels:7.4f} nats  {bar}")
    return weights


def main():
    """Train, then reverse unseen strings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    weights = train(parser.parse_args().steps)
    unseen = draw(np.random.default_rng(1), 1000)
    outputs = greedy(reference.build(SETTINGS, SIZES, weights), unseen)
    exact = (outputs == unseen.labels).all(axis=1).mean()
    print(f"{100 * exact:.1f} % of 1,000 unseen strings reversed exactly")


if __name__ == "__main__":
    main()
