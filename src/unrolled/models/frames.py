"""Models of vectors: recurrent layers read them as they are, and a head says what the outputs mean."""

from __future__ import annotations

from torch import Tensor, nn

from unrolled import config
from unrolled.models.autoregressive import Autoregressive
from unrolled.models.contract import DecoderOutput
from unrolled.models.dropout import dropout
from unrolled.models.heads import HEADS
from unrolled.models.recurrent import Ragged, RecurrentLayers
from unrolled.models.recurrent_decoder import RecurrentState
from unrolled.parameters import Sizes

__all__ = ["FrameDecoder", "Frames"]


class Frames(Autoregressive):
    """A model of P(y_t | x_1 … x_t): nothing is encoded, and the memory is None.

    `decode` takes vectors (B, n, F) where other models take ids (B, n), and its "logits" are whatever the head reads.

    Parameters
    ----------
    settings : config.Frames
    sizes : Sizes
        Width of an input, 0, and number of outputs.
    """

    def __init__(self, settings: config.Frames, sizes: Sizes) -> None:
        super().__init__()
        self.head = HEADS[settings.head]
        self.decoder = FrameDecoder(settings.decoder, sizes)


class FrameDecoder(nn.Module):
    """Recurrent layers and an output layer; all steps of a chunk are one recurrence."""

    def __init__(self, settings: config.FrameDecoder, sizes: Sizes) -> None:
        super().__init__()
        self.settings = settings
        self.layers = RecurrentLayers(settings, sizes.source)
        self.output = nn.Linear(settings.hidden_size, sizes.target)

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
        """Read vectors (B, n, F)."""
        del memory, classes, need_attention
        ragged = None if mask is None else Ragged.from_mask(mask)
        hidden, layers = self.layers(tokens, state.layers, ragged, self.layers.weights())
        outputs = self.output(dropout(hidden, self.settings.dropout, self.training))  # (B, n, O)
        return DecoderOutput(outputs, RecurrentState(layers, None), None)
