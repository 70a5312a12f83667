"""The PyTorch engine of search: a batch of sources being decoded, NumPy in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unrolled.models.contract import SequenceModel
from unrolled.next_symbol import (
    FloatArray,
    IntArray,
    SamplingPolicy,
    check_log_probs,
    draw,
    filtered_probabilities,
    top_k,
)

__all__ = ["TorchEngine", "TorchStepper"]

PAD, BOS = 0, 1


def _padded(rows: Sequence[NDArray[np.integer[Any]]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded ids (B, S) and their mask."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), int(lengths.max())), PAD, dtype=np.int64)
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


class TorchEngine:
    """Decoding with a PyTorch model.

    Parameters
    ----------
    model : module with the decoder contract
        Put into evaluation mode.
    vocabulary_size : int
        Target symbols.
    device : torch.device
    """

    def __init__(self, model: Any, *, vocabulary_size: int, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.model: SequenceModel = model.eval().to(self.device)
        self.vocabulary_size = vocabulary_size

    @torch.inference_mode()
    def start(self, sources: Sequence[NDArray[np.integer[Any]]], *, need_attention: bool = False) -> TorchStepper:
        """Encode the sources and feed BOS to one row of each."""
        memory = self.model.encode(*_padded(sources, self.device))
        state = self.model.initial_state(memory, len(sources))
        return TorchStepper(self.model, memory, state, num_rows=len(sources), need_attention=need_attention)

    @torch.inference_mode()
    def log_probs(
        self, sources: Sequence[NDArray[np.integer[Any]]], targets: Sequence[NDArray[np.integer[Any]]]
    ) -> list[FloatArray]:
        """``ln P(y_t | y_<t, x)`` of each target id, end symbol included, in nats."""
        labels, mask = _padded(targets, self.device)
        memory = self.model.encode(*_padded(sources, self.device))
        inputs = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], dim=1)
        logits = self.model.decode(inputs, memory, self.model.initial_state(memory, len(targets)), mask=mask).logits
        chosen = _log_softmax(logits).gather(2, labels.unsqueeze(2)).squeeze(2).cpu().numpy()
        return [row[: len(target)] for row, target in zip(chosen, targets, strict=True)]


class TorchStepper:
    """Rows of a batch of sources, each fed the same number of tokens; see the engine protocol."""

    def __init__(self, model: SequenceModel, memory: Any, state: Any, *, num_rows: int, need_attention: bool) -> None:
        self._model = model
        self._memory = memory
        self._state = state
        self._need_attention = need_attention
        self._device = memory.mask.device
        self.num_rows = num_rows
        self.advance(np.full(num_rows, BOS))

    @torch.inference_mode()
    def advance(self, tokens: IntArray) -> None:
        """Feed one token a row."""
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=self._device).unsqueeze(1)
        output = self._model.decode(ids, self._memory, self._state, need_attention=self._need_attention)
        self._state = output.state
        self._attention = output.attention
        self._log_probs = _log_softmax(output.logits[:, -1])  # (R, V)

    @torch.inference_mode()
    def select(self, rows: IntArray, sources: IntArray | None = None) -> None:
        """Keep these sources, then reorder rows."""
        if sources is not None:
            self._memory = self._memory.select(torch.as_tensor(sources, dtype=torch.int64, device=self._device))
        index = torch.as_tensor(rows, dtype=torch.int64, device=self._device)
        self._state = self._state.select(index)
        self._log_probs = self._log_probs.index_select(0, index)
        if self._attention is not None:
            self._attention = self._attention.index_select(0, index)
        self.num_rows = len(rows)

    def top_k(self, k: int, banned: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """Best k next symbols of each row and their log-probabilities, (R, k); ties by lower id."""
        if self._device.type == "cpu":
            return top_k(self._log_probs.numpy(), k, banned=banned)
        log_probs = self._log_probs.index_fill(1, torch.tensor(list(banned), device=self._device), -torch.inf)
        # A stable sort is the one order that leaves ties by id.
        best, ids = log_probs.sort(dim=1, descending=True, stable=True)
        values = best[:, :k].cpu().numpy()
        check_log_probs(values)
        return ids[:, :k].cpu().numpy(), values

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
        return self._attention[:, -1].cpu().numpy()


def _log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities in float64, so that sums over long outputs keep their digits."""
    return torch.log_softmax(logits.double(), dim=-1)
