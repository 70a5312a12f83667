"""Models of this project that are measured, of the sizes that all share."""

from __future__ import annotations

from sizes import D_FF, DROPOUT, HEADS, LAYERS, WIDTH

from unrolled import config

__all__ = ["DATA", "MODELS"]

DATA = config.Data(target=config.Side(units="space"))


def recurrent(wiring: str, attention: str) -> config.Seq2Seq:
    """LSTM with attention."""
    size = {"embedding_dim": WIDTH, "hidden_size": WIDTH, "dropout": DROPOUT}
    return config.Seq2Seq(
        encoder=config.RecurrentEncoder.model_validate(size),
        decoder=config.RecurrentDecoder.model_validate({**size, "wiring": wiring, "attention": attention}),
    )


def transformer(dropout: float) -> config.Seq2Seq:
    """Transformer."""
    size = {"d_model": WIDTH, "d_ff": D_FF, "num_layers": LAYERS, "num_heads": HEADS, "dropout": dropout}
    return config.Seq2Seq(
        encoder=config.TransformerEncoder.model_validate(size), decoder=config.TransformerDecoder.model_validate(size)
    )


MODELS = {
    "lstm": recurrent("luong", "general"),
    "input-feeding": recurrent("luong_input_feeding", "general"),
    "bahdanau": recurrent("bahdanau", "additive"),
    "transformer": transformer(0.1),
    "transformer-0": transformer(0.0),
}
