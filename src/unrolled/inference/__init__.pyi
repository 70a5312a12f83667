from .comparison import Contest, compare
from .evaluation import AnswerKey, Report
from .exposure import ExposureGap
from .frame_model import FrameEvaluation, FrameModel
from .inputs import InputNotes
from .loading import load, load_predictor, load_text_model
from .predictor import Prediction, Predictor
from .text_model import TextEvaluation, TextModel

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
