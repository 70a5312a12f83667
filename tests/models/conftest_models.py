"""Every encoder with every decoder, with all weights random, in float64 where exactness is the question."""

import itertools

import numpy as np
import pytest
import torch

from unrolled import config, models
from unrolled.parameters import Sizes, inventory

SIZES = Sizes(source=19, features=4, target=13)  # source: 4 specials, 11 symbols, 4 features

ENCODERS = {
    "bilstm": config.RecurrentEncoder(cell="lstm", embedding_dim=5, hidden_size=7, dropout=0.3),
    "bigru2": config.RecurrentEncoder(cell="gru", embedding_dim=5, hidden_size=7, num_layers=2, dropout=0.3),
    "lstm2": config.RecurrentEncoder(
        embedding_dim=5, hidden_size=14, num_layers=2, is_bidirectional=False, dropout=0.3
    ),
    "sinusoidal": config.TransformerEncoder(d_model=14, d_ff=11, num_layers=2, num_heads=2, dropout=0.3),
    "rotary": config.TransformerEncoder(
        d_model=12, d_ff=11, num_layers=2, num_heads=3, positions="rotary", dropout=0.3
    ),
    "convolution": config.ConvolutionEncoder(channels=14, num_layers=2, dropout=0.3),
}
DECODERS = {
    "lstm2_dot": config.RecurrentDecoder(embedding_dim=3, hidden_size=14, num_layers=2, attention="dot", dropout=0.3),
    "gru_scaled": config.RecurrentDecoder(
        cell="gru", embedding_dim=3, hidden_size=14, attention="scaled_dot", dropout=0.3
    ),
    "lstm_general": config.RecurrentDecoder(embedding_dim=3, hidden_size=11, attention="general", dropout=0.3),
    "gru2_additive": config.RecurrentDecoder(
        cell="gru", embedding_dim=3, hidden_size=11, num_layers=2, attention="additive", dropout=0.3
    ),
    "lstm_none": config.RecurrentDecoder(embedding_dim=3, hidden_size=11, attention="none", dropout=0.3),
    "gru_every_step": config.RecurrentDecoder(
        cell="gru", embedding_dim=3, hidden_size=11, attention="none", vector_every_step=True, dropout=0.3
    ),
    "relu_learned_start": config.RecurrentDecoder(
        cell="rnn", nonlinearity="relu", embedding_dim=3, hidden_size=11, start="learned", dropout=0.3
    ),
    "ungated_input_feeding": config.RecurrentDecoder(
        forget_gate=False, embedding_dim=3, hidden_size=11, num_layers=2, wiring="luong_input_feeding", dropout=0.3
    ),
    "lstm_bahdanau": config.RecurrentDecoder(
        embedding_dim=3, hidden_size=11, attention="additive", wiring="bahdanau", dropout=0.3
    ),
    "gru_before_bahdanau_tied": config.RecurrentDecoder(
        cell="gru",
        reset="before",
        embedding_dim=11,
        hidden_size=11,
        wiring="bahdanau",
        tie_embeddings=True,
        dropout=0.3,
    ),
    "gelu_learned_tied": config.TransformerDecoder(
        d_model=10,
        d_ff=11,
        num_layers=2,
        num_heads=2,
        positions="learned",
        max_positions=64,
        activation="gelu",
        tie_embeddings=True,
        dropout=0.3,
    ),
    "post_swiglu": config.TransformerDecoder(
        d_model=10, d_ff=11, num_layers=2, num_heads=2, norm="post", activation="swiglu", dropout=0.3
    ),
    "sinusoidal": config.TransformerDecoder(d_model=10, d_ff=11, num_layers=2, num_heads=2, dropout=0.3),
    "rotary": config.TransformerDecoder(
        d_model=12, d_ff=11, num_layers=2, num_heads=3, positions="rotary", dropout=0.3
    ),
    "window": config.TransformerDecoder(d_model=12, d_ff=11, num_layers=2, num_heads=3, window=3, dropout=0.3),
    "convolution": config.ConvolutionDecoder(channels=10, kernel_size=2, num_layers=3, dropout=0.3),
}


PARTNERS = {"bigru2", "rotary", "convolution", "gru_scaled", "lstm_bahdanau", "gru_every_step"}  # of convolutions


def fits(encoder: str, decoder: str) -> bool:
    if decoder == "window" and encoder not in ("bigru2", "rotary"):
        return False
    if "convolution" in (encoder, decoder) and not {encoder, decoder} <= PARTNERS:
        return False
    settings = DECODERS[decoder]
    attention = getattr(settings, "attention", "none")
    return attention not in ("dot", "scaled_dot") or config.memory_size(ENCODERS[encoder]) == settings.hidden_size


LANGUAGE_DECODERS = {
    "lstm2": config.RecurrentLanguageDecoder(embedding_dim=5, hidden_size=7, num_layers=2, dropout=0.3),
    "gru2_tied_variational": config.RecurrentLanguageDecoder(
        cell="gru", embedding_dim=7, hidden_size=7, num_layers=2, tie_embeddings=True, variational_dropout=True
    ),
    "rotary": config.TransformerDecoder(d_model=12, d_ff=11, num_layers=2, num_heads=3, positions="rotary"),
    "learned_post_tied": config.TransformerDecoder(
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
    "window": config.TransformerDecoder(d_model=12, d_ff=11, num_layers=2, num_heads=3, positions="rotary", window=4),
    "convolution_tied": config.ConvolutionDecoder(channels=10, num_layers=2, tie_embeddings=True),
}

COMBINATIONS = [pair for pair in itertools.product(ENCODERS, DECODERS) if fits(*pair)]
assert {decoder for _, decoder in COMBINATIONS} == set(DECODERS)
assert {encoder for encoder, _ in COMBINATIONS} == set(ENCODERS)


def random_weights(settings: config.Model, sizes: Sizes = SIZES, seed: int = 0) -> dict[str, np.ndarray]:
    """All parameters random, biases and norms too: a zero bias hides that it is added twice."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0.0, 0.4, shape) + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
        for name, shape, _ in inventory(settings, sizes)
    }


LANGUAGE_MODELS = [("text", decoder) for decoder in LANGUAGE_DECODERS]


def settings_of(encoder: str, decoder: str) -> config.Seq2Seq | config.LanguageModel:
    if encoder == "text":
        return config.LanguageModel(decoder=LANGUAGE_DECODERS[decoder])
    return config.Seq2Seq(encoder=ENCODERS[encoder], decoder=DECODERS[decoder])


def build(encoder: str, decoder: str) -> models.Seq2Seq | models.LanguageModel:
    settings = settings_of(encoder, decoder)
    return models.build(settings, SIZES, random_weights(settings)).eval()


@pytest.fixture(params=COMBINATIONS + LANGUAGE_MODELS, ids="-".join)
def model(request: pytest.FixtureRequest) -> models.Seq2Seq | models.LanguageModel:
    """One combination, or a decoder alone, in float64 and evaluation mode."""
    return build(*request.param)


@pytest.fixture(params=COMBINATIONS, ids="-".join)
def translator(request: pytest.FixtureRequest) -> models.Seq2Seq:
    """One combination in float64 and evaluation mode: the models that read a source."""
    return build(*request.param)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Ragged sources with features in three of four rows, ragged targets; lengths prime where they can be."""
    generator = torch.Generator().manual_seed(7)
    symbols, features = [5, 1, 3, 7], [2, 0, 1, 3]
    width = max(s + 1 + f for s, f in zip(symbols, features, strict=True))
    source = torch.zeros(4, width, dtype=torch.int64)
    for row, (s, f) in enumerate(zip(symbols, features, strict=True)):
        ids = torch.cat(
            [
                torch.randint(4, 15, (s,), generator=generator),
                torch.tensor([2]),
                torch.randint(15, 19, (f,), generator=generator),
            ]
        )
        source[row, : len(ids)] = ids
    target_mask = torch.arange(7) < torch.tensor([7, 2, 5, 1]).unsqueeze(1)
    tokens = torch.randint(4, 13, (4, 7), generator=generator) * target_mask
    tokens[:, 0] = 1
    return {"source": source, "source_mask": source != 0, "tokens": tokens, "target_mask": target_mask}
