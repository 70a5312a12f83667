"""Gated convolutions: encoder and decoder (Dauphin et al. 2017; Gehring et al. 2017).

A layer multiplies k positions side by side, ``[a; g] = W [x_{t−d}; x_t; x_{t+d}] + b``, opens one half by the other,
``y = a ⊙ σ(g)`` (Dauphin et al. 2017, eq. 1), and adds its input at the variance of one, ``√½ (x + y)``. Weights start
at ``N(0, 4 (1 − p) / (k·C))`` with p the dropout rate, so that all layers have one variance (Gehring et al. 2017,
section 3.5).

Notes
-----
Deviations from Gehring et al.: dilations 1, k, k², … in place of a plain stack; no position embeddings (a state that
knows no position can go on for ever) and no weight normalisation; each decoder layer's attention is the layer of
Transformers, with one head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unrolled import config
from unrolled.models.contract import DecoderOutput, Encoded, detached, real_lengths, selected
from unrolled.models.dropout import dropout
from unrolled.models.multihead import CrossAttention, LayeredMemory
from unrolled.models.output import Output
from unrolled.models.recurrent import Tokens
from unrolled.models.symbol_encoder import SymbolEncoder
from unrolled.parameters import Sizes

__all__ = ["ConvolutionDecoder", "ConvolutionEncoder", "ConvolutionState"]

_HALF_VARIANCE = math.sqrt(0.5)


def _sum(x: Tensor, y: Tensor) -> Tensor:
    """Residual sum of two equal variances at the variance of one."""
    return (x + y) * _HALF_VARIANCE


class ConvolutionLayer(nn.Module):
    """One gated convolution, a linear layer over `kernel_size` positions side by side; then attention to a memory."""

    def __init__(self, settings: config.Convolution, dilation: int, memory_size: int | None = None) -> None:
        super().__init__()
        C = settings.channels
        self.dilation = dilation
        self.kernel_size = settings.kernel_size
        self.reach = (settings.kernel_size - 1) * dilation
        self.conv = nn.Linear(settings.kernel_size * C, 2 * C)
        if memory_size is not None:
            self.cross = CrossAttention(C, memory_size, num_heads=1)

    def convolve(self, x: Tensor, around: Tensor) -> Tensor:
        """(B, n, C) → (B, n, C), from x with what stands around it: `reach` more positions (B, n + reach, C)."""
        n = x.shape[1]
        taps = [around[:, tap * self.dilation :][:, :n] for tap in range(self.kernel_size)]
        return _sum(x, functional.glu(self.conv(torch.cat(taps, dim=-1)), dim=-1))


class ConvolutionLayers(nn.ModuleList):
    """One layer for each dilation."""

    def __init__(self, settings: config.Convolution, memory_size: int | None = None) -> None:
        super().__init__(ConvolutionLayer(settings, dilation, memory_size) for dilation in config.dilations(settings))

    def __iter__(self) -> Iterator[ConvolutionLayer]:
        """From the lowest to the highest."""
        return cast("Iterator[ConvolutionLayer]", super().__iter__())


class ConvolutionEncoder(SymbolEncoder):
    """Convolutions centred on each symbol. Padding is 0 in every layer, as is what lies beyond either end."""

    def __init__(self, settings: config.ConvolutionEncoder, sizes: Sizes) -> None:
        super().__init__(sizes, settings.channels, settings.channels, settings.dropout)
        self.layers = ConvolutionLayers(settings)

    def run(self, inputs: Tokens, mask: Tensor) -> tuple[Tensor, tuple[tuple[Tensor, ...], ...]]:
        """Output (B, S, C) of the layers over the real symbols (B, S); there are no final states."""
        x, real = inputs.embedded(), mask.unsqueeze(-1)
        for number, layer in enumerate(self.layers):
            x = x * real
            around = dropout(x, self.dropout if number else 0.0, self.training)
            x = layer.convolve(x, functional.pad(around, (0, 0, layer.reach // 2, layer.reach // 2)))
        return x, ()


class ConvolutionState(NamedTuple):
    """The last inputs of each layer, (B, (k − 1) · d, C): all that later outputs see of the past; zero at the start."""

    layers: tuple[Tensor, ...]

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows; repeats are allowed."""
        return selected(self, rows)

    def detach(self) -> Self:
        """The same values, cut from the graph."""
        return detached(self)

    def restarted(self, rows: Tensor, start: ConvolutionState) -> ConvolutionState:
        """State with these rows (B,) taken back to their start."""
        pairs = zip(start.layers, self.layers, strict=True)
        return ConvolutionState(tuple(torch.where(rows[:, None, None], *pair) for pair in pairs))


class ConvolutionDecoder(nn.Module):
    """Convolutions over each position and those before it; without an encoder a language model's."""

    def __init__(self, settings: config.ConvolutionDecoder, encoder: config.Encoder | None, sizes: Sizes) -> None:
        super().__init__()
        self.dropout = settings.dropout
        self.embedding = nn.Embedding(sizes.target, settings.channels)
        self.layers = ConvolutionLayers(settings, None if encoder is None else config.memory_size(encoder))
        self.output = Output(settings.channels, sizes.target, is_tied=settings.tie_embeddings)

    def prepare(self, encoded: Encoded) -> LayeredMemory:
        """Compute once a source the keys and values of every layer."""
        return LayeredMemory.of_layers(self.layers, encoded)

    def initial_state(self, memory: LayeredMemory | None, batch_size: int) -> ConvolutionState:
        """Zeros."""
        del memory
        zeros, width = self.output.bias.new_zeros, self.embedding.weight.shape[1]
        return ConvolutionState(tuple(zeros(batch_size, layer.reach, width) for layer in self.layers))

    def forward(
        self,
        tokens: Tensor,
        memory: LayeredMemory | None,
        state: ConvolutionState,
        *,
        mask: Tensor | None,
        classes: Tensor | None,
        need_attention: bool,
    ) -> DecoderOutput:
        """Decode ids (R, n); R is a multiple of the number of sources."""
        x = functional.embedding(tokens, dropout(self.embedding.weight, self.dropout, self.training))
        lengths = None if mask is None else real_lengths(mask)
        pasts, attention = [], None
        for number, layer in enumerate(self.layers):
            around = torch.cat([state.layers[number], x], dim=1)  # (R, reach + n, C)
            pasts.append(_last(around, layer.reach, lengths))
            x = layer.convolve(x, dropout(around, self.dropout if number else 0.0, self.training))
            if memory is not None:
                is_asked = need_attention and number == len(self.layers) - 1
                attended, attention = layer.cross(x, memory.layers[number], memory.mask, need_attention=is_asked)
                x = _sum(x, attended)
        logits = self.output(dropout(x, self.dropout, self.training), self.embedding.weight, classes)
        return DecoderOutput(
            logits, ConvolutionState(tuple(pasts)), None if attention is None else attention.mean(dim=1)
        )


def _last(around: Tensor, reach: int, lengths: Tensor | None) -> Tensor:
    """The last `reach` inputs of each row, those after its real ones left out: (R, reach + n, C) → (R, reach, C)."""
    if lengths is None:
        return around[:, around.shape[1] - reach :]
    steps = lengths.unsqueeze(1) + torch.arange(reach, device=around.device)
    return around.gather(1, steps.unsqueeze(-1).expand(-1, -1, around.shape[2]))
