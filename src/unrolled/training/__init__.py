"""Training: objective, schedules, the loop with its events, exact resume.

Importing this room needs PyTorch; without it, the import raises `MissingExtraError`.
"""

from unrolled.errors import MissingExtraError

try:
    import torch
except ImportError as absent:
    raise MissingExtraError("torch", extra="train", purpose="training") from absent

from unrolled.training.epochs import Epochs, Steps
from unrolled.training.evaluation import Dev, DevSet, Score
from unrolled.training.loop import Trainer
from unrolled.training.objective import Objective, PairObjective, cross_entropy_sum
from unrolled.training.outcome import Outcome
from unrolled.training.schedule import rate_factor
from unrolled.training.session import train
from unrolled.training.stepper import Stepper

__all__ = [
    "Dev",
    "DevSet",
    "Epochs",
    "Objective",
    "Outcome",
    "PairObjective",
    "Score",
    "Stepper",
    "Steps",
    "Trainer",
    "cross_entropy_sum",
    "rate_factor",
    "train",
]
