"""Greedy and beam decoding with `generate` of HuggingFace transformers: decode_transformers.py BEAM BATCH."""

import sys

import torch
from sizes import COUNT, D_FF, D_MODEL, HEADS, LAYERS, LENGTH, SYMBOLS
from timed import serve
from transformers import MarianConfig, MarianMTModel


def main() -> None:
    """Serve."""
    beam, batch = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    settings = MarianConfig(
        vocab_size=SYMBOLS,
        d_model=D_MODEL,
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
    )
    model = MarianMTModel(settings).eval()
    source = torch.randint(4, SYMBOLS, (COUNT[beam], LENGTH))
    options = {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH, "num_beams": beam, "do_sample": False}

    @torch.no_grad()
    def work() -> int:
        for first in range(0, len(source), batch):
            model.generate(source[first : first + batch], **options)
        return len(source)

    serve(work)


main()
