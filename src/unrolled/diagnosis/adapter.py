"""How a model is called: the decoder contract, a guess from the signature, or the caller's own functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.signature import arguments, find_logits, find_state, state_parameters
from unrolled.diagnosis.untouched import reseed, same_attributes
from unrolled.errors import ShapeError

__all__ = ["Adapter", "Subject", "chance_level"]

Step = Callable[[Any, Tensor, Any, Batch], tuple[Tensor, Any]]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Adapter:
    """How to use a model whose signature cannot be guessed; every part is optional.

    Attributes
    ----------
    forward : callable or None
        `forward(model, batch)` returns logits `(B, T, V)`.
    step : callable or None
        `step(model, tokens, state, batch)` reads tokens `(B, n)` and returns their logits `(B, n, V)` and the new
        state; `state` is None at the start.
    loss : callable or None
        The training loss, `loss(logits, labels)`; none for cross entropy over the labels that count.
    is_causal : bool
        False for a model that may look at all of its inputs, such as a tagger.
    time_first : bool
        True for a model that takes `(T, B)` and returns `(T, B, V)`.
    """

    forward: Callable[[Any, Batch], Any] | None = None
    step: Step | None = None
    loss: Loss | None = None
    is_causal: bool = True
    time_first: bool = False


class Subject:
    """A model under examination, called in one way whatever its signature.

    Parameters
    ----------
    model : nn.Module or callable
    adapter : Adapter, optional
    """

    def __init__(self, model: Any, adapter: Adapter | None = None) -> None:
        self.model = model
        self.adapter = adapter or Adapter()
        owner = getattr(model, "__self__", None)
        self.module = model if isinstance(model, nn.Module) else owner if isinstance(owner, nn.Module) else None
        self.has_contract = all(hasattr(model, name) for name in ("initial_state", "decode"))

    @property
    def name(self) -> str:
        """What the model itself is called in a finding."""
        owner = self.module if self.module is not None else self.model
        return getattr(owner, "__name__", type(owner).__name__)

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Named parameters, trainable or not."""
        return {} if self.module is None else dict(self.module.named_parameters())

    def logits(self, batch: Batch, *, seed: int = 0) -> Tensor:
        """Logits `(B, T, V)` of a batch; every call draws the same random numbers and knows of no other call."""
        with same_attributes(self.module):
            return self.connected_logits(batch, seed=seed)

    def connected_logits(self, batch: Batch, *, seed: int = 0) -> Tensor:
        """As `logits`, but what the module keeps of one call is there in the next."""
        reseed(seed)
        if self.adapter.forward is not None:
            output = self.adapter.forward(self.model, batch)
        elif self.has_contract:
            output = self.decode(batch.inputs, None, batch, mask=batch.mask)[0]
        else:
            output = self._call(batch)
        return self._batch_first(find_logits(output), batch)

    @property
    def can_step(self) -> bool:
        """Whether the model has a state that can be passed from call to call."""
        if self.adapter.step is not None or (self.has_contract and self.adapter.forward is None):
            return True
        return self.adapter.forward is None and bool(state_parameters(self.model))

    def step(self, tokens: Tensor, state: Any, batch: Batch) -> tuple[Tensor, Any]:
        """Logits `(B, n, V)` of more tokens `(B, n)`, and the state after them; `state` None to start."""
        reseed()
        part = Batch(tokens, source=batch.source, source_mask=batch.source_mask, pad=batch.pad)
        if self.adapter.step is not None:
            logits, state = self.adapter.step(self.model, tokens, state, batch)
        elif self.has_contract:
            logits, state = self.decode(tokens, state, batch)
        else:
            output = self._call(part, state)
            num_parts = len(state_parameters(self.model))
            logits, state = find_logits(output), find_state(output, num_parts=num_parts)
        return self._batch_first(logits, part), state

    def loss(self, batch: Batch, logits: Tensor | None = None) -> Tensor:
        """Training loss of a batch, in nats per label unless the adapter has its own."""
        assert batch.labels is not None
        logits = self.logits(batch) if logits is None else logits
        if self.adapter.loss is None and logits.shape[-1] == 1:  # one logit decides between two classes
            counted = batch.labels != batch.ignored
            return binary_cross_entropy_with_logits(logits[..., 0][counted], batch.labels[counted].to(logits.dtype))
        if self.adapter.loss is None:
            return cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=batch.ignored)
        return _apply(self.adapter.loss, logits, batch.labels)

    @contextmanager
    def mode(self, *, training: bool = False) -> Iterator[None]:
        """Run a block in evaluation (or training) mode; use inside `untouched`."""
        if self.module is not None:
            self.module.train(training)
        is_fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # one kernel for a whole layer hides the modules inside
        try:
            # cuDNN's recurrent layers refuse a backward pass in evaluation mode
            with nullcontext() if training else torch.backends.cudnn.flags(enabled=False):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fast)

    def _call(self, batch: Batch, state: Any = None) -> Any:
        flip = self.adapter.time_first
        given = arguments(self.model, batch, state=state, time_first=flip)
        try:
            return self.model(**given)
        except Exception as error:  # whatever it is, it is the model's own
            order = "(T, B)" if flip else "(B, T)"
            other = "" if flip else " pass adapter=Adapter(time_first=True) to a model that wants (T, B), or"
            error.add_note(
                f"raised inside {self.name}, which was given {', '.join(given)}, tokens as {order} with B ="
                f" {batch.size} and T = {batch.steps};{other} pass adapter=Adapter(forward=lambda model, batch: ...)"
            )
            raise

    def decode(self, tokens: Tensor, state: Any, batch: Batch, **options: Any) -> tuple[Tensor, Any]:
        """Models of the decoder contract: logits, and (memory, state) after the tokens."""
        if state is None:
            source = batch.source
            memory = None if source is None else self.model.encode(source, batch.real_source)
            state = memory, self.model.initial_state(memory, len(tokens))
        memory, own = state
        output = self.model.decode(tokens, memory, own, **options)
        return output.logits, (memory, output.state)

    def _batch_first(self, logits: Tensor, batch: Batch) -> Tensor:
        """Logits in the order `(B, T, V)`, or `(B, 1, V)` for a model with one output a sequence."""
        B, T = batch.size, batch.steps
        if logits.dim() == 2:
            logits = logits.reshape(T, B, -1) if self.adapter.time_first and len(logits) == B * T else logits
            logits = logits.reshape(B, -1, logits.shape[-1]) if logits.dim() == 2 else logits
        if self.adapter.time_first and logits.shape[:2] == (T, B):
            return logits.transpose(0, 1)
        if logits.shape[:2] in ((B, T), (B, 1)):
            return logits
        if logits.dim() == 3 and logits.shape[::2] == (B, T):
            return logits.transpose(1, 2)  # (B, V, T) as cross entropy likes it
        raise ShapeError(
            f"logits of {self.name} must be (B, T, V) with B = {B} and T = {T}, got {tuple(logits.shape)}; pass"
            f" adapter=Adapter(forward=...) that returns (B, T, V), or Adapter(time_first=True) for a time-first model"
        )


def chance_level(logits: Tensor) -> float:
    """Ln V, the loss of a guess; ln 2 for one logit."""
    return math.log(max(2, logits.shape[-1]))


def _apply(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Call a loss with (B, T, V) and (B, T), or flattened if it is one of PyTorch's or wants it so."""
    flat = logits.flatten(0, 1), labels.flatten()
    if isinstance(loss, nn.modules.loss._Loss) or loss is cross_entropy:
        return loss(*flat)
    try:
        return loss(logits, labels)
    except (RuntimeError, ValueError, IndexError):
        return loss(*flat)
