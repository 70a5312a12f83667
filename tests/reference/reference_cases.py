"""What several tests of the NumPy engine share: random weights, layers out of functions, batches, architectures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unrolled import config, reference
from unrolled.parameters import Sizes, inventory
from unrolled.text import Batch

TOLERANCE = 1e-6  # of a gradient check in float64


def normal(rng, *shape, dtype=np.float64):
    return rng.normal(size=shape).astype(dtype)


def random_cell(kind, input_size, hidden_size, *, seed=0):
    """A cell with all weights random, biases too: a zero bias hides that it is added twice."""
    rng = np.random.default_rng(seed)
    shapes = {name: weight.shape for name, weight in kind(input_size, hidden_size).parameters.items()}
    return kind.from_parameters({name: 0.6 * normal(rng, *shape) for name, shape in shapes.items()})


def random_weights(settings, sizes, *, seed=0, scale=0.4):
    rng = np.random.default_rng(seed)
    return {
        name: scale * normal(rng, *shape) + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for name, shape, _ in inventory(settings, sizes)
    }


@dataclass
class FunctionLayer:
    """A pair of pure functions as a layer, so that `gradient_check` takes it; arguments named are its parameters."""

    forward_function: Any
    backward_function: Any
    parameters: dict[str, Any] = field(default_factory=dict)
    num_outputs: int = 1

    def forward(self, *inputs):
        return self.forward_function(*inputs, **self.parameters)

    def backward(self, *d_outputs_and_cache):
        returned = self.backward_function(*d_outputs_and_cache)
        returned = tuple(returned) if isinstance(returned, tuple) else (returned,)
        count = len(returned) - len(self.parameters)
        return *returned[:count], dict(zip(self.parameters, returned[count:], strict=True))


# --- models ----------------------------------------------------------------------------------------------------------

SIZES = Sizes(source=19, features=4, target=13)  # source: 4 specials, 11 symbols, 4 features

ENCODERS = {
    "bilstm": config.RecurrentEncoder(embedding_dim=5, hidden_size=7),
    "bigru2": config.RecurrentEncoder(cell="gru", embedding_dim=5, hidden_size=7, num_layers=2),
    "lstm2": config.RecurrentEncoder(embedding_dim=5, hidden_size=14, num_layers=2, is_bidirectional=False),
    "rnn_reversed": config.RecurrentEncoder(
        cell="rnn", embedding_dim=5, hidden_size=14, num_layers=2, is_bidirectional=False, is_reversed=True
    ),
    "sinusoidal": config.TransformerEncoder(d_model=14, d_ff=11, num_layers=2, num_heads=2),
    "learned_post_swiglu": config.TransformerEncoder(
        d_model=14, d_ff=11, num_layers=1, num_heads=2, positions="learned", norm="post", activation="swiglu"
    ),
    "convolution": config.ConvolutionEncoder(channels=14, num_layers=2),
}
DECODERS = {
    "lstm2_dot": config.RecurrentDecoder(embedding_dim=3, hidden_size=14, num_layers=2, attention="dot"),
    "gru_scaled": config.RecurrentDecoder(cell="gru", embedding_dim=3, hidden_size=14, attention="scaled_dot"),
    "gru2_additive": config.RecurrentDecoder(
        cell="gru", reset="before", embedding_dim=3, hidden_size=11, num_layers=2, attention="additive"
    ),
    "lstm3_none": config.RecurrentDecoder(embedding_dim=3, hidden_size=11, num_layers=3, attention="none"),
    "gru_every_step": config.RecurrentDecoder(
        cell="gru", embedding_dim=3, hidden_size=11, attention="none", vector_every_step=True
    ),
    "relu_learned_start": config.RecurrentDecoder(
        cell="rnn", nonlinearity="relu", embedding_dim=3, hidden_size=11, start="learned"
    ),
    "ungated2_input_feeding": config.RecurrentDecoder(
        forget_gate=False, embedding_dim=3, hidden_size=11, num_layers=2, wiring="luong_input_feeding"
    ),
    "lstm2_bahdanau_tied": config.RecurrentDecoder(
        embedding_dim=11, hidden_size=11, num_layers=2, attention="additive", wiring="bahdanau", tie_embeddings=True
    ),
    "rotary": config.TransformerDecoder(d_model=12, d_ff=11, num_layers=2, num_heads=3, positions="rotary"),
    "gelu_post_learned_tied": config.TransformerDecoder(
        d_model=10,
        d_ff=11,
        num_layers=2,
        num_heads=2,
        positions="learned",
        max_positions=32,
        norm="post",
        activation="gelu",
        tie_embeddings=True,
    ),
    "window": config.TransformerDecoder(d_model=12, d_ff=11, num_layers=2, num_heads=3, window=3),
    "convolution": config.ConvolutionDecoder(channels=10, kernel_size=2, num_layers=3),
    "plain_convolution_tied": config.ConvolutionDecoder(
        channels=10, num_layers=2, is_dilated=False, tie_embeddings=True
    ),
}


def _fits(encoder, decoder):
    attention = getattr(DECODERS[decoder], "attention", "none")
    return attention not in ("dot", "scaled_dot") or config.memory_size(ENCODERS[encoder]) == 14


# each encoder with every third decoder, and each decoder with at least one encoder; a direct start among them
ARCHITECTURES = [
    (encoder, decoder)
    for i, encoder in enumerate(ENCODERS)
    for j, decoder in enumerate(DECODERS)
    if (_fits(encoder, decoder) and (i + j) % 3 == 0) or (encoder, decoder) == ("lstm2", "lstm2_dot")
]
NAMES = ["-".join(pair) for pair in ARCHITECTURES]
assert {decoder for _, decoder in ARCHITECTURES} == set(DECODERS)
assert {encoder for encoder, _ in ARCHITECTURES} == set(ENCODERS)


def settings_of(encoder, decoder):
    return config.Seq2Seq(encoder=ENCODERS[encoder], decoder=DECODERS[decoder])


def numpy_model(encoder, decoder, *, sizes=SIZES, dtype=np.float64):
    settings = settings_of(encoder, decoder)
    weights = {name: weight.astype(dtype) for name, weight in random_weights(settings, sizes).items()}
    return reference.build(settings, sizes, weights)


def padded(rows):
    width = max(len(row) for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids


SOURCES = ([4, 5, 6, 2, 15, 16], [7, 8, 2, 17], [9, 4, 4, 10, 2], [2])  # features in two rows, one row without symbols
TARGETS = ([4, 5, 6, 7, 2], [8, 2], [9, 10, 4, 2], [2])


def make_batch(sources=SOURCES, targets=TARGETS):
    """Ragged sources, some with features behind the end symbol, and ragged targets."""
    source, labels = padded(sources), padded(targets)
    inputs = np.concatenate([np.ones((len(labels), 1), np.int64), labels[:, :-1]], axis=1)
    return Batch(source, source != 0, inputs, labels, np.arange(len(source)))
