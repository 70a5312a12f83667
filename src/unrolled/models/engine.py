"""The PyTorch engine of search: a batch of sources being decoded, NumPy in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unrolled.errors import ShapeError
from unrolled.models.contract import SequenceModel, real_lengths
from unrolled.models.device import longest_float
from unrolled.models.language_model import LanguageModel
from unrolled.models.packed import packed
from unrolled.next_symbol import (
    FloatArray,
    IntArray,
    SamplingPolicy,
    check_log_probs,
    draw,
    filtered_probabilities,
)

__all__ = ["TorchEngine", "TorchStepper"]

PAD, BOS = 0, 1
_CACHED = 1 << 19  # numbers in float64 that a processor's cache holds


class TorchEngine:
    """Decoding with a PyTorch model.

    Parameters
    ----------
    model : module with the decoder contract
        Put into evaluation mode.
    vocabulary_size : int
        Target symbols.
    device : torch.device
    is_final : bool
        The weights do not change any more: on a CPU they are laid out for the processor.
    """

    def __init__(
        self, model: Any, *, vocabulary_size: int, device: torch.device | None = None, is_final: bool = False
    ) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model: SequenceModel = model.eval().to(self.device)
        self.vocabulary_size = vocabulary_size
        is_packed = is_final and self.device.type == "cpu"
        self._answering: SequenceModel = packed(model) if is_packed else self.model

    @torch.inference_mode()
    def start(self, sources: Sequence[NDArray[np.integer[Any]]], *, need_attention: bool = False) -> TorchStepper:
        """Encode the sources and feed BOS to one row of each; a language model is fed its prompts."""
        memory, prefixes = self._read(sources)
        tokens, mask = _padded(prefixes, self.device)
        state = self._answering.initial_state(memory, len(prefixes))
        return TorchStepper(self._answering, memory, state, tokens, mask, need_attention=need_attention)

    @torch.inference_mode()
    def log_probs(
        self, sources: Sequence[NDArray[np.integer[Any]]], targets: Sequence[NDArray[np.integer[Any]]]
    ) -> list[FloatArray]:
        """``ln P(y_t | y_<t, x)`` of each target id, end symbol included, in nats; x a source or a prompt."""
        memory, prefixes = self._read(sources)
        ids, mask = _padded([np.append(*pair) for pair in zip(prefixes, targets, strict=True)], self.device)
        state = self._answering.initial_state(memory, len(ids))
        logits = self._answering.decode(ids[:, :-1], memory, state, mask=mask[:, 1:]).logits
        chosen = _chosen(logits, ids[:, 1:])
        firsts = (len(prefix) - 1 for prefix in prefixes)
        return [row[first:][: len(y)] for row, first, y in zip(chosen, firsts, targets, strict=True)]

    @torch.inference_mode()
    def stream_log_probs(
        self, inputs: IntArray, labels: IntArray, state: Any = None, *, reset: NDArray[np.bool_] | None = None
    ) -> tuple[FloatArray, Any]:
        """``ln P`` of labels (B, n) after inputs (B, n), in nats, of a language model that reads on and on.

        Returns the log-probabilities (B, n) and the state after the chunk, which the next call is given; None stands
        for the start. `reset` (B, n) is True at inputs before which a row returns to its start.
        """
        tokens, following = (torch.as_tensor(ids, dtype=torch.int64, device=self.device) for ids in (inputs, labels))
        state = self._answering.initial_state(None, len(inputs)) if state is None else state
        begins = None if reset is None else torch.as_tensor(reset, device=self.device)
        output = self._answering.decode(tokens, None, state, reset=begins)
        return _chosen(output.logits, following), output.state

    def _read(self, sources: Sequence[NDArray[np.integer[Any]]]) -> tuple[Any, Sequence[NDArray[np.integer[Any]]]]:
        """Memory of the sources, and the tokens that a row of each is fed before the first prediction."""
        if not isinstance(self.model, LanguageModel):
            return self._answering.encode(*_padded(sources, self.device)), [np.array([BOS])] * len(sources)
        if not all(map(len, sources)):
            raise ShapeError("a language model goes on from at least one symbol, got an empty prompt")
        return None, sources


def _padded(rows: Sequence[NDArray[np.integer[Any]]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded ids (B, S) and their mask."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), int(lengths.max())), PAD, dtype=np.int64)
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


class TorchStepper:
    """Rows of a batch of sources, each fed the same number of tokens after its prefix; see the engine protocol."""

    def __init__(
        self, model: SequenceModel, memory: Any, state: Any, tokens: Tensor, mask: Tensor, *, need_attention: bool
    ) -> None:
        self._model = model
        self._memory = memory
        self._state = state
        self._need_attention = need_attention
        self._device = tokens.device
        self.num_rows = len(tokens)
        self._feed(tokens, None if mask.all() else mask)

    @torch.inference_mode()
    def advance(self, tokens: IntArray) -> None:
        """Feed one token a row."""
        self._feed(torch.as_tensor(tokens, dtype=torch.int64, device=self._device).unsqueeze(1), None)

    def _feed(self, tokens: Tensor, mask: Tensor | None) -> None:
        """Feed tokens (R, n), right-padded where there is a mask."""
        output = self._model.decode(tokens, self._memory, self._state, mask=mask, need_attention=self._need_attention)
        self._state = output.state
        self._attention = None if output.attention is None else _last(output.attention, mask)  # (R, S)
        self._log_probs = _log_softmax(_last(output.logits, mask))  # (R, V)

    @torch.inference_mode()
    def select(self, rows: IntArray, sources: IntArray | None = None) -> None:
        """Keep these sources, then reorder rows."""
        if sources is not None and self._memory is not None:
            self._memory = self._memory.select(torch.as_tensor(sources, dtype=torch.int64, device=self._device))
        index = torch.as_tensor(rows, dtype=torch.int64, device=self._device)
        self._state = self._state.select(index)
        self._log_probs = self._log_probs.index_select(0, index)
        if self._attention is not None:
            self._attention = self._attention.index_select(0, index)
        self.num_rows = len(rows)

    @torch.inference_mode()
    def top_k(self, k: int, banned: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """Best k next symbols of each row and their log-probabilities, (R, k); ties by lower id."""
        log_probs = self._log_probs
        known = [symbol for symbol in banned if symbol < log_probs.shape[1]]
        log_probs = log_probs.index_fill(1, torch.tensor(known, dtype=torch.int64, device=self._device), -torch.inf)
        values, ids = _top_k(log_probs, min(k, log_probs.shape[1]))
        best = values.cpu().numpy()
        check_log_probs(best)  # NaN counts as more than any number, so it is among the best
        return ids.cpu().numpy(), best

    def sample(self, policy: SamplingPolicy, uniforms: FloatArray) -> IntArray:
        """One id a row, by inverting the filtered distribution at one uniform number a row."""
        return draw(filtered_probabilities(self._log_probs.cpu().numpy(), policy), uniforms)

    @torch.inference_mode()
    def log_prob_of(self, ids: IntArray) -> FloatArray:
        """``ln P`` of one symbol a row, (R,)."""
        index = torch.as_tensor(ids, dtype=torch.int64, device=self._device).unsqueeze(1)
        return self._log_probs.gather(1, index).squeeze(1).cpu().numpy()

    @torch.inference_mode()
    def probabilities(self) -> FloatArray:
        """P of every next symbol, (R, V)."""
        return self._log_probs.exp().cpu().numpy()

    def attention(self) -> FloatArray:
        """Weights of the last token fed over the source, (R, S)."""
        assert self._attention is not None, "attention was not asked for at the start"
        weights = self._attention.float() if self._attention.dtype == torch.bfloat16 else self._attention
        return weights.cpu().numpy()


def _top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Best k of each row (R, V) and where they are, ties by lower place; `Tensor.topk` leaves ties in any order."""
    best, places = values.topk(min(k + 1, values.shape[1]), dim=1)
    is_cut = (best[:, k:] == best[:, k - 1 : k]).any(dim=1)  # through equal values, of which the first ones count
    places, order = places[:, :k].sort(dim=1)
    best, order = best[:, :k].gather(1, order).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    if is_cut.any():
        all_best, all_places = values[is_cut].sort(dim=1, descending=True, stable=True)
        best[is_cut], places[is_cut] = all_best[:, :k], all_places[:, :k]
    return best, places


def _last(x: Tensor, mask: Tensor | None) -> Tensor:
    """What stands at each row's last real position: (R, n, X) → (R, X)."""
    if mask is None:
        return x[:, -1]
    return x[torch.arange(len(x), device=x.device), real_lengths(mask) - 1]


def _chosen(logits: Tensor, labels: Tensor) -> FloatArray:
    """Log-probabilities of labels (B, n), of logits (B, n, V), as many rows at once as stay in the cache."""
    num_rows = max(1, _CACHED // logits.shape[2])
    rows = zip(logits.flatten(0, 1).split(num_rows), labels.reshape(-1, 1).split(num_rows), strict=True)
    chosen = torch.cat([_log_softmax(part).gather(1, label) for part, label in rows])  # (B · n, 1)
    return chosen.view(labels.shape).cpu().numpy()


def _log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities in float64, so that sums over long outputs keep their digits."""
    return torch.log_softmax(logits.to(longest_float(logits.device)), dim=-1)
