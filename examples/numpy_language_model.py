"""A character language model in NumPy alone, against a 3-gram: one LSTM, truncated backpropagation, AdamW.

    python examples/numpy_language_model.py [--steps 1200]

The text is the reference manual that comes with Python (`pydoc_data.topics`): 200,000 characters to learn from and
20,000 unseen ones to predict. Prints the loss curve and the bits per character of both models.
"""

from __future__ import annotations

import argparse
import math
import time
from pydoc_data.topics import topics

import numpy as np

from unrolled.parameters import Normal, Parameter, Xavier, initialise
from unrolled.reference import LSTMCell, unroll_backward, unroll_forward
from unrolled.reference.layer import named, under
from unrolled.reference.layers import Embedding, Linear
from unrolled.reference.ops import cross_entropy_backward, cross_entropy_forward
from unrolled.reference.optimizers import adamw, adamw_start, clip

TRAIN, TEST = 200_000, 20_000
BATCH, CHUNK = 32, 50
E, H = 32, 192


def read_text():
    """Ids of the characters, and the alphabet."""
    text = "\n".join(topics[name] for name in sorted(topics))[: TRAIN + TEST]
    alphabet = sorted(set(text))
    return np.array([alphabet.index(character) for character in text]), alphabet


# --- 3-gram ----------------------------------------------------------------------------------------------------------


def trigram_bits(train, test, num_symbols):
    """Bits per character of interpolated counts of 1, 2 and 3 characters (Witten & Bell 1991)."""
    probability = np.full(len(test), 1.0 / num_symbols)
    history_train, history_test = np.zeros(len(train), int), np.zeros(len(test), int)
    for order in range(3):
        if order:  # the last `order` characters as one number
            history_train = np.concatenate([np.zeros(order, int), history_train[order:]])
            history_train[order:] += train[:-order] * num_symbols ** (order - 1)
            history_test[order:] += test[:-order] * num_symbols ** (order - 1)
        pairs = np.zeros((num_symbols**order, num_symbols), np.int32)
        np.add.at(pairs, (history_train[order:], train[order:]), 1)
        seen, kinds = pairs.sum(axis=1), (pairs > 0).sum(axis=1)
        found, total, new = pairs[history_test, test], seen[history_test], kinds[history_test]
        probability = np.where(total > 0, (found + new * probability) / np.maximum(total + new, 1), probability)
    return -np.log2(probability[3:]).mean()


# --- LSTM ------------------------------------------------------------------------------------------------------------


def start_weights(num_symbols):
    """Embedding, one LSTM cell, output layer, in float32."""
    inventory = (
        Parameter("embedding.weight", (num_symbols, E), Normal(0.1)),
        Parameter("output.weight", (num_symbols, H), Xavier()),
        Parameter("output.bias", (num_symbols,), Normal(0.0)),
    )
    return {**initialise(inventory, 0), **named("cell", LSTMCell(E, H, dtype=np.float32).parameters)}


def run(weights, ids, state):
    """Loss of a chunk (B, T + 1) in nats, the state after it, and the gradients; the state comes in detached."""
    embedding, output = Embedding(under(weights, "embedding")), Linear(under(weights, "output"))
    cell = LSTMCell.from_parameters(under(weights, "cell"))
    x, embedded = embedding.forward(ids[:, :-1])
    h, state, unrolled = unroll_forward(cell, x, state)
    logits, read = output.forward(h)
    loss, entropy = cross_entropy_forward(logits, ids[:, 1:], np.ones_like(ids[:, 1:], dtype=bool))

    def gradients():
        d_h, of_output = output.backward(cross_entropy_backward(1.0 / ids[:, 1:].size, entropy), read)
        d_x, _, of_cell = unroll_backward(cell, d_h, None, unrolled)
        of_embedding = embedding.backward(d_x, embedded)
        return {**named("embedding", of_embedding), **named("cell", of_cell), **named("output", of_output)}

    return float(loss), state, gradients


def train(ids, num_symbols, steps, *, learning_rate=4e-3):
    """Weights after so many steps; the loss is printed along the way."""
    weights = start_weights(num_symbols)
    optimizer, begin, running = adamw_start(weights), time.perf_counter(), None
    width = (len(ids) - 1) // BATCH
    rows = np.stack([ids[row * width : (row + 1) * width + 1] for row in range(BATCH)])
    for step in range(steps):
        at = step * CHUNK % (width - CHUNK)
        if at < CHUNK:  # the start of the text: nothing came before
            state = LSTMCell.from_parameters(under(weights, "cell")).zero_state(BATCH)
        loss, state, gradients = run(weights, rows[:, at : at + CHUNK + 1], state)
        rate = learning_rate * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * step / steps)))
        weights, optimizer = adamw(weights, clip(gradients(), 1.0).gradients, optimizer, learning_rate=rate)
        bits = loss / (BATCH * CHUNK) / math.log(2.0)
        running = bits if running is None else 0.95 * running + 0.05 * bits
        if step % max(1, steps // 15) == 0:
            spent = time.perf_counter() - begin
            print(f"step {step:5d}  {spent:5.1f} s  {running:6.3f} bits per character  {'█' * round(8 * running)}")
    return weights


def main():
    """Train, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200)
    steps = parser.parse_args().steps
    ids, alphabet = read_text()
    weights = train(ids[:TRAIN], len(alphabet), steps)
    test = ids[None, TRAIN:]
    loss, _, _ = run(weights, test, LSTMCell.from_parameters(under(weights, "cell")).zero_state(1))
    print(f"LSTM   {loss / (test.size - 1) / math.log(2.0):.3f} bits per unseen character")
    print(f"3-gram {trigram_bits(ids[:TRAIN], ids[TRAIN:], len(alphabet)):.3f} bits per unseen character")


if __name__ == "__main__":
    main()
