"""No finding on healthy models, neither at the start nor when trained; plain ones and ours."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from tutorial_models import (
    GPT,
    BahdanauSeq2Seq,
    ConvLM,
    DeepTagger,
    FixedVectorSeq2Seq,
    LoopLM,
    LSTMSeq2Seq,
    RecurrentLM,
    TransformerSeq2Seq,
    V,
    fit,
    pairs,
    text,
)

from unrolled import config, models
from unrolled.diagnosis import Adapter, examine
from unrolled.parameters import Sizes, initialise, inventory


def zero_head() -> nn.Module:
    """Output layer and residual projections start at 0, as some recipes do."""
    model = GPT()
    for part in [model.head, *(block.attn.c_proj for block in model.blocks), *(block.mlp[2] for block in model.blocks)]:
        nn.init.zeros_(part.weight)
    return model


PLAIN = {
    "lstm language model": (RecurrentLM, text),
    "gru language model": (lambda: RecurrentLM("GRU"), text),
    "rnn language model": (lambda: RecurrentLM("RNN", layers=1), text),
    "lstm cell in a loop": (LoopLM, text),
    "gpt": (GPT, text),
    "gpt tied": (lambda: GPT(tied=True), text),
    "gpt fused attention": (lambda: GPT(fault="fused"), text),
    "gpt zero start": (zero_head, text),
    "gpt relu": (lambda: GPT(fault="relu"), text),
    "causal convolution": (ConvLM, text),
    "deep residual": (lambda: DeepTagger(residual=True), text),
    "lstm general attention": (LSTMSeq2Seq, pairs),
    "bahdanau loop": (BahdanauSeq2Seq, pairs),
    "fixed vector": (FixedVectorSeq2Seq, pairs),
    "nn.Transformer": (TransformerSeq2Seq, pairs),
}

RECURRENT = {"embedding_dim": 16, "hidden_size": 12}
TRANSFORMER = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4}
OURS = {
    "lstm general": (config.RecurrentEncoder(**RECURRENT), config.RecurrentDecoder(**RECURRENT)),
    "gru bahdanau": (
        config.RecurrentEncoder(**RECURRENT, cell="gru"),
        config.RecurrentDecoder(**RECURRENT, cell="gru", attention="additive", wiring="bahdanau"),
    ),
    "rnn to transformer": (
        config.RecurrentEncoder(**RECURRENT, cell="rnn", num_layers=2),
        config.TransformerDecoder(**TRANSFORMER),
    ),
    "transformer rotary": (
        config.TransformerEncoder(**TRANSFORMER, positions="rotary"),
        config.TransformerDecoder(**TRANSFORMER, positions="rotary"),
    ),
    "transformer to ungated lstm": (
        config.TransformerEncoder(**TRANSFORMER),
        config.RecurrentDecoder(**RECURRENT, forget_gate=False, wiring="luong_input_feeding"),
    ),
}


def ours(name: str) -> nn.Module:
    settings = config.Seq2Seq(encoder=OURS[name][0], decoder=OURS[name][1])
    sizes = Sizes(V, 0, V)
    return models.build(settings, sizes, initialise(inventory(settings, sizes), 0))


@pytest.mark.parametrize("name", PLAIN)
def test_nothing_is_found_in_a_healthy_tutorial_model(name: str) -> None:
    torch.manual_seed(0)
    build, batch = PLAIN[name]
    model = build()
    start = examine(model, batch(), is_untrained=True, overfit=True)
    assert not start, str(start)
    assert not start.failed
    trained = examine(fit(model, batch()), batch(), overfit=False)
    assert not trained, str(trained)


@pytest.mark.parametrize("name", OURS)
def test_nothing_is_found_in_our_models(name: str) -> None:
    torch.manual_seed(0)
    model = ours(name)
    start = examine(model, pairs(), is_untrained=True, overfit=False)
    assert not start, str(start)
    assert not start.failed
    trained = examine(fit(model, pairs()), pairs(), overfit=False)
    assert not trained, str(trained)


def test_enough_of_them() -> None:
    assert len(PLAIN) + len(OURS) >= 12


def test_a_tagger_may_look_ahead_if_it_says_so() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(V, 16)
            self.rnn = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
            self.out = nn.Linear(24, V)

        def forward(self, x):
            return self.out(self.rnn(self.embed(x))[0])

    assert "future_leak" in examine(Tagger(), text(), overfit=False).names
    assert not examine(Tagger(), text(), adapter=Adapter(is_causal=False), overfit=False)
