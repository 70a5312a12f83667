"""Yoyodyne's models of the shared sizes, its data and its trainer, as its command line would make them."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from files import FOLDER, TRAIN
from sizes import BATCH, D_FF, DROPOUT, HEADS, LAYERS, WIDTH
from yoyodyne.data import DataModule
from yoyodyne.models import BaseModel, SoftAttentionLSTMModel, TransformerModel
from yoyodyne.models.modules import LSTMEncoder, TransformerEncoder
from yoyodyne.trainers import Trainer

__all__ = ["make_model", "read_data", "trainer"]

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


def read_data(batch_size: int = BATCH, predict: Path | None = None) -> DataModule:
    """Words to train on, and words to decode."""
    return DataModule(
        model_dir=str(FOLDER / "yoyodyne"),
        train=str(TRAIN),
        predict=str(predict) if predict else None,
        source_sep="",
        target_sep=" ",
        batch_size=batch_size,
    )


def make_model(name: str, data: DataModule) -> BaseModel:
    """Make one of the names in `ours.MODELS`: lstm, transformer, transformer-0."""
    shared = {
        "embedding_size": WIDTH,
        "optimizer": lambda weights: torch.optim.Adam(weights, lr=1e-3),
        "target_vocab_size": data.target_vocab_size,
        "vocab_size": data.vocab_size,
        "max_source_length": data.max_source_length,
        "max_target_length": data.max_target_length,
        "label_smoothing": 0.1,
    }
    if name == "lstm":
        encoder = LSTMEncoder(dropout=DROPOUT, embedding_size=WIDTH, hidden_size=WIDTH, bidirectional=True)
        return SoftAttentionLSTMModel(
            source_encoder=encoder, decoder_dropout=DROPOUT, decoder_hidden_size=WIDTH, **shared
        )
    dropout = 0.0 if name == "transformer-0" else 0.1
    encoder = TransformerEncoder(
        dropout=dropout, embedding_size=WIDTH, hidden_size=D_FF, layers=LAYERS, attention_heads=HEADS
    )
    return TransformerModel(
        source_encoder=encoder,
        decoder_dropout=dropout,
        decoder_hidden_size=D_FF,
        decoder_layers=LAYERS,
        decoder_attention_heads=HEADS,
        **shared,
    )


def trainer(*, max_steps: int = -1, callbacks: tuple[object, ...] = ()) -> Trainer:
    """Lightning's loop without validation, saving and logging."""
    return Trainer(
        accelerator="cpu",
        gradient_clip_val=3,
        max_epochs=-1,
        max_steps=max_steps,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
