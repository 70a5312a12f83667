"""Encoder–decoder: any encoder with any decoder, behind the one contract."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unrolled import config
from unrolled.models.autoregressive import Autoregressive
from unrolled.models.convolution import ConvolutionDecoder, ConvolutionEncoder
from unrolled.models.recurrent_decoder import RecurrentDecoder
from unrolled.models.recurrent_encoder import RecurrentEncoder
from unrolled.models.transformer import TransformerDecoder, TransformerEncoder
from unrolled.parameters import Sizes

__all__ = ["Seq2Seq"]


class Seq2Seq(Autoregressive):
    """A model of P(y | x) = Π_t P(y_t | y_<t, x).

    Parameters
    ----------
    settings : config.Seq2Seq
    sizes : Sizes
        Vocabulary sizes.
    """

    def __init__(self, settings: config.Seq2Seq, sizes: Sizes) -> None:
        super().__init__()
        self.encoder = _encoder(settings.encoder, sizes)
        self.decoder = _decoder(settings.decoder, settings.encoder, sizes)
        if settings.share_embeddings:
            del self.encoder.embedding
            self.encoder.__dict__["embedding"] = self.decoder.embedding  # no child: the weight keeps its one name

    def encode(self, source: Tensor, source_mask: Tensor) -> Any:
        """Encode a batch of sources and compute once what the decoder needs of them.

        Parameters
        ----------
        source : int64 Tensor (B, S)
            Symbols, the end symbol, then features.
        source_mask : bool Tensor (B, S)
            True = real token; right-padded.
        """
        return self.decoder.prepare(self.encoder(source, source_mask))  # type: ignore[operator]


def _encoder(settings: config.Encoder, sizes: Sizes) -> nn.Module:
    if isinstance(settings, config.RecurrentEncoder):
        return RecurrentEncoder(settings, sizes)
    if isinstance(settings, config.TransformerEncoder):
        return TransformerEncoder(settings, sizes)
    return ConvolutionEncoder(settings, sizes)


def _decoder(settings: config.Decoder, encoder: config.Encoder, sizes: Sizes) -> nn.Module:
    if isinstance(settings, config.RecurrentDecoder):
        return RecurrentDecoder(settings, encoder, sizes)
    if isinstance(settings, config.TransformerDecoder):
        return TransformerDecoder(settings, encoder, sizes)
    return ConvolutionDecoder(settings, encoder, sizes)
