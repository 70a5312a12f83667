"""Trained runs at work: load, predict, score, evaluate, compare; with PyTorch or, where it is not installed, NumPy."""

from unrolled.inference.comparison import Contest, compare
from unrolled.inference.evaluation import AnswerKey, Report
from unrolled.inference.exposure import ExposureGap
from unrolled.inference.inputs import InputNotes
from unrolled.inference.loading import load
from unrolled.inference.predictor import Prediction, Predictor

__all__ = [
    "AnswerKey",
    "Contest",
    "ExposureGap",
    "InputNotes",
    "Prediction",
    "Predictor",
    "Report",
    "compare",
    "load",
]
