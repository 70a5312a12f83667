"""Language models: a decoder alone, behind the one contract."""

from __future__ import annotations

from torch import Tensor, nn

from unrolled import config
from unrolled.models.autoregressive import Autoregressive
from unrolled.models.contract import DecoderOutput
from unrolled.models.convolution import ConvolutionDecoder
from unrolled.models.dropout import dropout, variational_dropout
from unrolled.models.output import Output
from unrolled.models.recurrent import Ragged, RecurrentLayers, Tokens
from unrolled.models.recurrent_decoder import RecurrentState
from unrolled.models.transformer import TransformerDecoder
from unrolled.parameters import Sizes

__all__ = ["LanguageModel", "RecurrentLanguageDecoder"]


class LanguageModel(Autoregressive):
    """A model of P(y) = Π_t P(y_t | y_<t): nothing is encoded, and the memory is None.

    Parameters
    ----------
    settings : config.LanguageModel
    sizes : Sizes
        Vocabulary sizes; that of the target alone is used.
    """

    def __init__(self, settings: config.LanguageModel, sizes: Sizes) -> None:
        super().__init__()
        decoder = settings.decoder
        if isinstance(decoder, config.RecurrentLanguageDecoder):
            self.decoder = RecurrentLanguageDecoder(decoder, sizes)
        elif isinstance(decoder, config.TransformerDecoder):
            self.decoder = TransformerDecoder(decoder, None, sizes)
        else:
            self.decoder = ConvolutionDecoder(decoder, None, sizes)


class RecurrentLanguageDecoder(nn.Module):
    """Embedding, recurrent layers, output layer (Mikolov et al. 2010); all steps of a chunk are one recurrence.

    With variational dropout each row draws one mask for its embeddings, one between any two layers and one before the
    output, and uses it at all steps of a call (Gal & Ghahramani 2016, section 4.2).

    Notes
    -----
    Gal & Ghahramani also mask the step from h_{t−1} to h_t; here that connection stays whole.
    """

    def __init__(self, settings: config.RecurrentLanguageDecoder, sizes: Sizes) -> None:
        super().__init__()
        self.settings = settings
        self.drop = variational_dropout if settings.variational_dropout else dropout
        self.embedding = nn.Embedding(sizes.target, settings.embedding_dim)
        self.layers = RecurrentLayers(settings, settings.embedding_dim, drop=self.drop)
        self.output = Output(settings.hidden_size, sizes.target, is_tied=settings.tie_embeddings)

    def initial_state(self, memory: None, batch_size: int) -> RecurrentState:
        """Zeros."""
        del memory
        return RecurrentState.zeros(self.settings, batch_size, self.output.bias)

    def forward(
        self,
        tokens: Tensor,
        memory: None,
        state: RecurrentState,
        *,
        mask: Tensor | None,
        classes: Tensor | None,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode ids (B, n)."""
        del memory, need_attention
        ragged = None if mask is None else Ragged.from_mask(mask)
        hidden, layers = self.layers(self._inputs(tokens), state.layers, ragged, self.layers.weights())
        features = self.drop(hidden, self.settings.dropout, self.training)
        logits = self.output(features, self.embedding.weight, classes)
        return DecoderOutput(logits, RecurrentState(layers, None), None)

    def _inputs(self, tokens: Tensor) -> Tensor | Tokens:
        """Embeddings (B, n, E) where each row drops its own entries; else a table to look gates up in."""
        rate = self.settings.dropout
        if self.settings.variational_dropout:
            return self.drop(self.embedding(tokens), rate, self.training)
        return Tokens(tokens, self.drop(self.embedding.weight, rate, self.training))
