"""The NumPy engine: every layer from first principles, with its own backward pass, and prediction without PyTorch."""

from unrolled.reference.autoregressive import DecoderOutput, LossAndGradients
from unrolled.reference.building import build
from unrolled.reference.cells import (
    GRUCell,
    LSTMCell,
    ReLURNNCell,
    ResetBeforeGRUCell,
    RNNCell,
    UngatedLSTMCell,
)
from unrolled.reference.frames import Frames
from unrolled.reference.gradient_check import gradient_check
from unrolled.reference.language_model import LanguageModel
from unrolled.reference.recurrence import Recurrent, unroll_backward, unroll_forward
from unrolled.reference.seq2seq import Seq2Seq

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
