"""Encoder–decoder: any encoder with any decoder, behind the one contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unrolled import config
from unrolled.models.contract import DecoderOutput
from unrolled.models.recurrent_decoder import RecurrentDecoder
from unrolled.models.recurrent_encoder import RecurrentEncoder
from unrolled.models.transformer import TransformerDecoder, TransformerEncoder
from unrolled.parameters import Sizes

__all__ = ["Seq2Seq"]


class Seq2Seq(nn.Module):
    """A model of P(y | x) = Π_t P(y_t | y_<t, x).

    Parameters
    ----------
    settings : config.Seq2Seq
    sizes : Sizes
        Vocabulary sizes.

    Notes
    -----
    `decode` on n tokens equals n calls on one token each, and any chunking. It never changes a state.
    """

    def __init__(self, settings: config.Seq2Seq, sizes: Sizes) -> None:
        super().__init__()
        self.encoder: nn.Module
        self.decoder: RecurrentDecoder | TransformerDecoder
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
        return self.decoder.prepare(self.encoder(source, source_mask))

    def initial_state(self, memory: Any, batch_size: int) -> Any:
        """State before the first token of `batch_size` rows, a multiple of the number of sources."""
        return self.decoder.initial_state(memory, batch_size)

    def decode(
        self,
        tokens: Tensor,
        memory: Any,
        state: Any,
        *,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
        need_attention: bool = False,
    ) -> DecoderOutput:
        """Feed n ≥ 1 tokens a row and predict the one after each.

        Parameters
        ----------
        tokens : int64 Tensor (B, n)
            B is a multiple of the number of sources: row r reads memory r // k.
        memory, state
            From `encode`, and from `initial_state` or an earlier call.
        mask : bool Tensor (B, n), optional
            Right-padded real tokens; state and positions advance by these alone.
        reset : bool Tensor (B, n), optional
            Tokens before which the row returns to its start.
        need_attention : bool
            Return the weights over the source; asking changes nothing else.
        """
        if reset is None:
            return self.decoder(tokens, memory, state, mask=mask, need_attention=need_attention)  # type: ignore[no-any-return]
        start = self.initial_state(memory, len(tokens))
        outputs = []
        for begin, end in _segments(reset):
            state = state.restarted(reset[:, begin], start)
            real = None if mask is None else mask[:, begin:end]
            outputs.append(self.decoder(tokens[:, begin:end], memory, state, mask=real, need_attention=need_attention))
            state = outputs[-1].state
        weights = [output.attention for output in outputs if output.attention is not None]
        attention = torch.cat(weights, dim=1) if weights else None
        return DecoderOutput(torch.cat([output.logits for output in outputs], dim=1), state, attention)


def _segments(reset: Tensor) -> list[tuple[int, int]]:
    """Runs of columns that no row resets within."""
    starts = [0, *(column for column in reset.any(dim=0).nonzero().flatten().tolist() if column)]
    return list(zip(starts, [*starts[1:], reset.shape[1]], strict=True))
