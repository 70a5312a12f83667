"""Runs that programs of ours use, trained once and kept: `trained("lstm")` is the folder of one."""

from __future__ import annotations

import sys
from pathlib import Path

from files import DEV, FOLDER, TEXT_FILE, TRAIN
from ours import DATA, MODELS
from sizes import BATCH, STEPS

import unrolled
from unrolled import presets
from unrolled.commands.products import fast_products
from unrolled.config import Config, Training

__all__ = ["trained"]

FEW_STEPS = 50
"""Of models whose answers do not matter."""


def settings(name: str) -> Config:
    """Of a name in `MODELS`, or of a preset."""
    if name in MODELS:
        training = Training(max_steps=STEPS, max_batch_size=BATCH, batch_tokens=8192)
        return Config(data=DATA, model=MODELS[name], training=training)
    preset = presets.get(name)
    return preset.model_copy(
        update={"training": preset.training.model_copy(update={"max_steps": FEW_STEPS, "minutes": None})}
    )


def trained(name: str) -> Path:
    """Folder of the run of that name."""
    folder = FOLDER / "runs" / name
    if not folder.exists():
        print(f"training {name}, once", file=sys.stderr)
        partial = folder.with_name(f".{name}")
        files = {"train_path": TEXT_FILE} if name == "gpt-tiny" else {"train_path": TRAIN, "dev": DEV}
        with fast_products():
            unrolled.train(**files, config=settings(name), out=partial, overwrite=True)
        partial.rename(folder)
    return folder
