"""Writing text with `generate` of HuggingFace transformers: a GPT-2 of the sizes of the preset gpt-tiny."""

from __future__ import annotations

import torch
from sizes import TEXT_TOKENS
from timed import serve_rate
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    """Serve."""
    torch.manual_seed(0)
    settings = GPT2Config(
        vocab_size=69,
        n_positions=512,
        n_embd=128,
        n_inner=512,
        n_layer=4,
        n_head=4,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = GPT2LMHeadModel(settings).eval()
    prompt = torch.tensor([[1, 5]])
    options = {"max_new_tokens": TEXT_TOKENS, "do_sample": True, "top_k": 0, "use_cache": True}

    @torch.no_grad()
    def work() -> int:
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **options).shape[1] - prompt.shape[1]

    serve_rate(work)


main()
