"""Decoding with `generate` of HuggingFace transformers, random weights: decode_transformers.py COUNT BEAM BATCH."""

from __future__ import annotations

import sys

import torch
from sizes import D_FF, HEADS, LAYERS, LENGTH, SYMBOLS, WIDTH
from timed import serve_rate
from transformers import MarianConfig, MarianMTModel


def main() -> None:
    """Serve."""
    count, beam, batch = map(int, sys.argv[1:])
    torch.manual_seed(0)
    settings = MarianConfig(
        vocab_size=SYMBOLS,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=D_FF,
        decoder_ffn_dim=D_FF,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        activation_function="relu",
    )
    model = MarianMTModel(settings).eval()
    source = torch.randint(4, SYMBOLS, (count, LENGTH))
    options = {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH, "num_beams": beam, "do_sample": False}

    @torch.no_grad()
    def work() -> int:
        for first in range(0, len(source), batch):
            model.generate(source[first : first + batch], **options)
        return len(source)

    serve_rate(work)


main()
