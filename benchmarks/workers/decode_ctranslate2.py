"""Decoding with CTranslate2, random weights: decode_ctranslate2.py COUNT BEAM BATCH TYPE."""

from __future__ import annotations

import os
import random
import sys
import tempfile

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec
from sizes import D_FF, HEADS, LAYERS, LENGTH, SYMBOLS, WIDTH
from timed import serve_rate

GENERATOR = np.random.default_rng(0)
NAMES = ["<blank>", "<s>", "</s>", *(f"t{number}" for number in range(SYMBOLS - 3))]


def table(*shape: int) -> np.ndarray:
    """Small random numbers."""
    return (0.05 * GENERATOR.standard_normal(shape)).astype(np.float32)


def fill_linear(layer, outputs: int, inputs: int) -> None:
    """Put weights and a zero bias in."""
    layer.weight, layer.bias = table(outputs, inputs), np.zeros(outputs, np.float32)


def fill_norm(norm) -> None:
    """Leave a norm as it starts."""
    norm.gamma, norm.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)


def fill_attention(attention, *widths: int) -> None:
    """Fill its products, fused as CTranslate2 wants them."""
    for layer, width in zip(attention.linear, widths, strict=True):
        fill_linear(layer, width, WIDTH)
    fill_norm(attention.layer_norm)


def make_model() -> transformer_spec.TransformerSpec:
    """Make a pre-norm Transformer with random weights."""
    spec = transformer_spec.TransformerSpec.from_config(
        (LAYERS, LAYERS), HEADS, pre_norm=True, activation=common_spec.Activation.RELU
    )
    for side in (spec.encoder, spec.decoder):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = table(SYMBOLS, WIDTH)
        side.scale_embeddings = True
        side.position_encodings.encodings = table(64, WIDTH)
        fill_norm(side.layer_norm)
        for layer in side.layer:
            fill_attention(layer.self_attention, 3 * WIDTH, WIDTH)
            fill_linear(layer.ffn.linear_0, D_FF, WIDTH)
            fill_linear(layer.ffn.linear_1, WIDTH, D_FF)
            fill_norm(layer.ffn.layer_norm)
    for layer in spec.decoder.layer:
        fill_attention(layer.attention, WIDTH, 2 * WIDTH, WIDTH)
    fill_linear(spec.decoder.projection, SYMBOLS, WIDTH)
    spec.register_source_vocabulary(NAMES)
    spec.register_target_vocabulary(NAMES)
    spec.validate()
    return spec


def main() -> None:
    """Serve."""
    count, beam, batch = map(int, sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        make_model().save(folder)
        translator = ctranslate2.Translator(
            folder, compute_type=sys.argv[4], intra_threads=int(os.environ["OMP_NUM_THREADS"])
        )
    chance = random.Random(0)
    sources = [[chance.choice(NAMES[3:]) for _ in range(LENGTH)] for _ in range(count)]

    def work() -> int:
        translator.translate_batch(
            sources, beam_size=beam, max_batch_size=batch, max_decoding_length=LENGTH, min_decoding_length=LENGTH
        )
        return len(sources)

    serve_rate(work)


main()
