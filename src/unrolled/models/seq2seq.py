"""Encoder–decoder: any encoder with any decoder, behind the one contract."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unrolled import config
from unrolled.models.autoregressive import Autoregressive
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
        self.encoder: nn.Module
        if isinstance(settings.encoder, config.RecurrentEncoder):
            self.encoder = RecurrentEncoder(settings.encoder, sizes)
        else:
            self.encoder = TransformerEncoder(settings.encoder, sizes)
        if isinstance(settings.decoder, config.RecurrentDecoder):
            self.decoder = RecurrentDecoder(settings.decoder, settings.encoder, sizes)
        else:
            self.decoder = TransformerDecoder(settings.decoder, settings.encoder, sizes)

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
