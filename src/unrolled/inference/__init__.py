"""Trained runs at work: load, predict, score, evaluate, compare; with PyTorch or, where it is not installed, NumPy."""

from unrolled.inference.comparison import Contest, compare
from unrolled.inference.evaluation import AnswerKey, Report
from unrolled.inference.exposure import ExposureGap
from unrolled.inference.frame_model import FrameEvaluation, FrameModel
from unrolled.inference.inputs import InputNotes
from unrolled.inference.loading import load, load_predictor, load_text_model
from unrolled.inference.predictor import Prediction, Predictor
from unrolled.inference.text_model import TextEvaluation, TextModel

__all__ = [
    "AnswerKey",
    "Contest",
    "ExposureGap",
    "FrameEvaluation",
    "FrameModel",
    "InputNotes",
    "Prediction",
    "Predictor",
    "Report",
    "TextEvaluation",
    "TextModel",
    "compare",
    "load",
    "load_predictor",
    "load_text_model",
]
