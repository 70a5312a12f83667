"""The batch that checks work on, and the changes they make to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_columns

from unrolled.errors import ShapeError

__all__ = ["NO_LABEL", "Batch", "Side"]

Side = Literal["source", "inputs"]

NO_LABEL = -100
"""What cross entropy ignores unless told otherwise; it can never be a class."""


@dataclass(frozen=True)
class Batch:
    """One batch of examples; only `inputs` is needed.

    Attributes
    ----------
    inputs : Tensor
        What the model (for pairs: its decoder) reads, token ids `(B, T)` or real vectors `(B, T, F)`.
    labels : Tensor or None
        What the output at each step is trained to be, `(B, T)`; of a model with one output a sequence `(B,)`, which is
        kept as `(B, 1)`.
    source : Tensor or None
        What the encoder reads, `(B, S)` or `(B, S, F)`.
    source_mask : Tensor or None
        `(B, S)`, True = real token. Without it, `source != pad` where `pad` is given.
    mask : Tensor or None
        `(B, T)`, True = real token of `inputs`. Without it, `inputs != pad` where `pad` is given.
    pad : int or None
        The id that fills up rows; none where all rows are full.
    ignore_index : int or None
        The label that does not count; none for -100 where any label is -100, else `pad`, or -100 without one.
    lines : tuple of int or None
        The line of the data file that each example came from.
    """

    inputs: Tensor
    labels: Tensor | None = None
    source: Tensor | None = None
    source_mask: Tensor | None = None
    mask: Tensor | None = None
    pad: int | None = None
    ignore_index: int | None = None
    lines: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        inputs, source = tuple(self.inputs.shape[:2]), None if self.source is None else tuple(self.source.shape[:2])
        if self.labels is not None and self.labels.dim() == 1 and not self.labels.is_floating_point():
            object.__setattr__(self, "labels", self.labels[:, None])
        if self.has_classes and self.is_of_sequences and self.ignore_index is None:
            object.__setattr__(self, "ignore_index", NO_LABEL)  # padding has no place among classes of sequences
        expected = {"mask": inputs, "source_mask": source}
        expected |= {"labels": (inputs[0], 1) if self.is_of_sequences else inputs}
        for name, shape in expected.items():
            part = getattr(self, name)
            if part is not None and tuple(part.shape[:2]) != shape:
                raise ShapeError(f"{name} must be {shape} like what it belongs to, got {tuple(part.shape)}")
        if self.inputs.dim() < 2 or (source is not None and source[0] != inputs[0]):
            raise ShapeError(f"inputs must be (B, T) and source (B, S) with one B, got {inputs} and {source}")
        if self.ignore_index is None and self.has_classes and bool(torch.eq(self.labels, NO_LABEL).any()):  # type: ignore[arg-type]
            object.__setattr__(self, "ignore_index", NO_LABEL)  # here, so that a part of the batch knows it as well

    @classmethod
    def of(cls, value: Any) -> Batch:
        """Take a batch in any usual form.

        Parameters
        ----------
        value : Batch, Tensor, tuple, mapping or object
            `inputs`; `(inputs, labels)`; `(source, inputs, labels)`; a mapping with the names above, or with
            `input_ids` (the source where there are `decoder_input_ids`, else the inputs), `attention_mask` and
            `decoder_attention_mask`; or any object that has the names above as attributes, such as
            `unrolled.text.Batch` (arrays become tensors, PAD is 0).
        """
        if isinstance(value, Batch):
            is_plain = not any(part.is_inference() for part in vars(value).values() if isinstance(part, Tensor))
            return value if is_plain else cls.of(vars(value))
        if isinstance(value, tuple | list) and not hasattr(value, "inputs"):
            names = {1: ("inputs",), 2: ("inputs", "labels"), 3: ("source", "inputs", "labels")}.get(len(value))
            if names is None:
                raise ShapeError(
                    f"a batch is (inputs, labels) or (source, inputs, labels), got {len(value)} parts; use Batch(...)"
                )
            return cls(**{name: _tensor(part) for name, part in zip(names, value, strict=True)})
        if isinstance(value, Mapping):
            others = _WITH_DECODER if "decoder_input_ids" in value else _ALONE
            parts: dict[str, Any] = {others.get(str(name)) or str(name): part for name, part in value.items()}
            if set(parts) - set(_NAMES) or "inputs" not in parts:
                known = (*_NAMES, *_WITH_DECODER)
                raise ShapeError(f"a batch needs 'inputs' and knows {', '.join(known)}; got {', '.join(value)}")
            return cls(**{name: part if name in _PLAIN else _tensor(part) for name, part in parts.items()})
        if hasattr(value, "inputs"):
            named = {name: _tensor(getattr(value, name, None)) for name in _TENSORS}
            return cls(**named, pad=getattr(value, "pad", 0))
        return cls(inputs=_tensor(value))

    @property
    def ignored(self) -> int:
        """The label that does not count."""
        if self.ignore_index is not None:
            return self.ignore_index
        return NO_LABEL if self.pad is None else self.pad

    @property
    def real_source(self) -> Tensor | None:
        """`(B, S)`, True = real source token; none without a source."""
        return None if self.source is None else _real(self.source, self.source_mask, self.pad)

    @property
    def real_inputs(self) -> Tensor:
        """`(B, T)`, True = real token of the inputs."""
        return _real(self.inputs, self.mask, self.pad)

    @property
    def has_classes(self) -> bool:
        """Whether there are labels, and they are class ids."""
        return self.labels is not None and not self.labels.is_floating_point()

    @property
    def is_of_sequences(self) -> bool:
        """Whether there is one label a sequence."""
        return self.labels is not None and self.labels.dim() == 2 and self.labels.shape[1] == 1 < self.inputs.shape[1]

    @property
    def size(self) -> int:
        """Number of examples B."""
        return self.inputs.shape[0]

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return self.inputs.shape[1]

    def rows(self, index: Tensor) -> Batch:
        """The examples that `index` selects, repeats allowed."""
        parts = {name: getattr(self, name) for name in _TENSORS}
        chosen = {name: part[index] for name, part in parts.items() if part is not None}
        lines = None if self.lines is None else tuple(self.lines[int(row)] for row in index)
        return replace(self, **chosen, lines=lines)

    def columns(self, start: int, stop: int) -> Batch:
        """Steps `start` to `stop` of inputs and labels; the source stays whole."""
        return replace(self, **{name: part[:, start:stop] for name, part in self._beside("inputs").items()})

    def with_inputs_altered(self, where: Tensor) -> Batch:
        """Other tokens at the real inputs that `where (B, T)` marks."""
        return replace(self, inputs=_altered(self.inputs, where & self.real_inputs, self.pad))

    def with_source_altered(self, where: Tensor) -> Batch:
        """Other tokens at the real source positions that `where (B, S)` marks."""
        assert self.source is not None
        return replace(self, source=_altered(self.source, where & self.real("source"), self.pad))

    def real(self, side: Side) -> Tensor:
        """Real tokens of the source or of the inputs, True = real."""
        real = self.real_source if side == "source" else self.real_inputs
        assert real is not None
        return real

    def with_more_padding(self, side: Side, count: int) -> Batch:
        """`count` more padded columns at the end of the source, or of the inputs and their labels."""
        fill = {side: self.pad or 0, _MASK_OF[side]: False, "labels": self.ignored}
        wider: dict[str, Any] = {}
        for name, part in self._beside(side).items():
            tail = *[0, 0] * (part.dim() - 2), 0, count
            wider[name] = pad_columns(part, tail, value=fill[name])
        return replace(self, **wider)

    def trimmed(self, side: Side) -> Batch:
        """Without the columns of the source or the inputs that are padding in every row."""
        keep = self.real(side).any(0)
        return replace(self, **{name: part[:, keep] for name, part in self._beside(side).items()})

    def with_padding_altered(self, side: Side) -> Batch:
        """Real tokens in place of the padding of the source or the inputs, under an unchanged mask."""
        real, tokens = self.real(side), getattr(self, side)
        changed: dict[str, Any] = {side: _altered(tokens, ~real, self.pad), _MASK_OF[side]: real}
        return replace(self, **changed)

    def _beside(self, side: Side) -> dict[str, Any]:
        """What has the columns of the source, or those of the inputs."""
        names = (side, _MASK_OF[side], *(["labels"] if side == "inputs" and not self.is_of_sequences else []))
        return {name: part for name in names if (part := getattr(self, name)) is not None}


_MASK_OF: dict[Side, str] = {"source": "source_mask", "inputs": "mask"}
_TENSORS = ("inputs", "labels", "source", "source_mask", "mask")
_NAMES = tuple(field.name for field in fields(Batch))
_ALONE = {"input_ids": "inputs", "attention_mask": "mask"}
_WITH_DECODER = {
    "input_ids": "source",
    "attention_mask": "source_mask",
    "decoder_input_ids": "inputs",
    "decoder_attention_mask": "mask",
}
_PLAIN = tuple(name for name in _NAMES if name not in _TENSORS)


def _tensor(value: Any) -> Any:
    if value is None:
        return None
    with torch.inference_mode(False):  # tensors of inference mode cannot take part in a gradient
        tensor = torch.as_tensor(value)
        return tensor.clone() if tensor.is_inference() else tensor


def _real(tokens: Tensor, mask: Tensor | None, pad: int | None) -> Tensor:
    if mask is not None:
        return mask.bool()
    if pad is None or tokens.dim() > 2:
        return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return tokens != pad


def _altered(tokens: Tensor, where: Tensor, pad: int | None) -> Tensor:
    """Different values where `where` says: the next id among those of the batch, or the vector moved by noise."""
    if tokens.is_floating_point():
        noise = torch.randn(tokens.shape, device=tokens.device, dtype=tokens.dtype)
        return tokens + noise * where.reshape(*where.shape, *[1] * (tokens.dim() - 2))
    pool = torch.unique(tokens)
    pool = pool[pool != pad] if pad is not None else pool
    if len(pool) < 2:
        only = int(pool[0]) if len(pool) else 0
        pool = torch.tensor([only, only + 1 if only == 0 or only - 1 == pad else only - 1]).sort().values
    following = pool[(torch.searchsorted(pool, tokens.contiguous()) + 1) % len(pool)]
    return torch.where(where, following, tokens)
