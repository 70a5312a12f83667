"""The NumPy engine: every layer from first principles, with its own backward pass, and prediction without PyTorch."""

from unrolled.reference.seq2seq import DecoderOutput, LossAndGradients, Seq2Seq, build

__all__ = ["DecoderOutput", "LossAndGradients", "Seq2Seq", "build"]
