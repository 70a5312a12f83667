"""What every decoder gives and takes; the one contract above which nothing knows an architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

__all__ = ["DecoderOutput", "Encoded", "Memory", "SequenceModel", "State", "detached", "leaves", "refilled", "selected"]

Tree = TypeVar("Tree")


def selected(tree: Tree, rows: Tensor) -> Tree:
    """Copy of a (nested) tuple of tensors with these rows of the first axis; repeats are allowed."""
    copy: Tree = _mapped(tree, lambda leaf: leaf.index_select(0, rows))
    return copy


def detached(tree: Tree) -> Tree:
    """The same values, cut from the graph."""
    cut: Tree = _mapped(tree, Tensor.detach)
    return cut


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a (nested) tuple, in order."""
    found: list[Tensor] = []
    _mapped(tree, found.append)
    return found


def refilled(tree: Tree, tensors: Iterator[Tensor]) -> Tree:
    """A tuple built like this one of other tensors, taken in the order of `leaves`."""
    built: Tree = _mapped(tree, lambda _: next(tensors))
    return built


def _mapped(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree)
    parts = [_mapped(leaf, function) for leaf in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


class State(Protocol):
    """A decoder's past: an immutable named tuple of tensors, batch axis first."""

    def select(self, rows: Tensor) -> Self:
        """Independent state of these rows."""

    def detach(self) -> Self:
        """The same state, cut from the graph."""


class Memory(Protocol):
    """A batch of encoded sources, with whatever a decoder computes of them once."""

    @property
    def mask(self) -> Tensor:
        """Real source tokens, (B, S)."""

    def select(self, sources: Tensor) -> Self:
        """Memory of these sources alone."""


class DecoderOutput(NamedTuple):
    """Result of `decode`: logits (B, n, V), the state after the tokens, and on request the attention (B, n, S).

    Where some classes alone were asked for, the logits are theirs.
    """

    logits: Tensor
    state: Any
    attention: Tensor | None


class Encoded(NamedTuple):
    """What an encoder gives to any decoder.

    `output` (B, S, M), `mask` (B, S), `positions` (B, S) of the symbols (0 for features and padding), and `finals`: of
    each layer the last real state of all directions side by side, (B, M) tensors in a tuple (h,) or (h, c); empty for
    encoders without a final state.
    """

    output: Tensor
    mask: Tensor
    positions: Tensor
    finals: tuple[tuple[Tensor, ...], ...]


class SequenceModel(Protocol):
    """The decoder contract."""

    def encode(self, source: Tensor, source_mask: Tensor) -> Any:
        """Encode sources (B, S); never called of a language model, whose memory is None."""

    def initial_state(self, memory: Any, batch_size: int) -> Any:
        """State before the first token."""

    def decode(
        self,
        tokens: Tensor,
        memory: Any,
        state: Any,
        *,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
        classes: Tensor | None = None,
        need_attention: bool = False,
    ) -> DecoderOutput:
        """Feed tokens (B, n) for any n ≥ 1."""


def folded(rows: Tensor, num_sources: int) -> Tensor:
    """Fold the k rows of each source into its query axis: (B·k, n, H) → (B, k·n, H)."""
    return rows.reshape(num_sources, -1, rows.shape[-1])


def real_lengths(mask: Tensor) -> Tensor:
    """Real tokens of each right-padded row: (B, T) → (B,)."""
    return mask.sum(dim=1, dtype=torch.int64)
