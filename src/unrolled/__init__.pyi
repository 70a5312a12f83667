from .config import Config
from .errors import UnrolledError
from .inference import Prediction, Predictor, Report, TextEvaluation, TextModel, compare, load
from .settings import resolve
from .training import train
from .version import __version__

__all__ = [
    "Config",
    "Prediction",
    "Predictor",
    "Report",
    "TextEvaluation",
    "TextModel",
    "UnrolledError",
    "__version__",
    "compare",
    "load",
    "resolve",
    "train",
]
