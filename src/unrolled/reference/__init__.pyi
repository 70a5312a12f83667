from .autoregressive import DecoderOutput, LossAndGradients
from .building import build
from .cells import (
    GRUCell,
    LSTMCell,
    ReLURNNCell,
    ResetBeforeGRUCell,
    RNNCell,
    UngatedLSTMCell,
)
from .frames import Frames
from .gradient_check import gradient_check
from .language_model import LanguageModel
from .recurrence import Recurrent, unroll_backward, unroll_forward
from .seq2seq import Seq2Seq

__all__ = [
    "DecoderOutput",
    "Frames",
    "GRUCell",
    "LSTMCell",
    "LanguageModel",
    "LossAndGradients",
    "RNNCell",
    "ReLURNNCell",
    "Recurrent",
    "ResetBeforeGRUCell",
    "Seq2Seq",
    "UngatedLSTMCell",
    "build",
    "gradient_check",
    "unroll_backward",
    "unroll_forward",
]
