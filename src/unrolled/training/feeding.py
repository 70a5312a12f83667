"""What the decoder is fed while it trains (Bengio et al. 2015).

Under teacher forcing the input of step t is the true symbol of step t - 1. Otherwise it may be the model's own: its
most probable one, or one drawn from its distribution, given everything that it was fed before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from unrolled import config
from unrolled.models.contract import SequenceModel
from unrolled.text import BOS, PAD
from unrolled.text.chance import uniforms

__all__ = ["chosen_inputs", "truth_probability"]


def truth_probability(feeding: config.Feeding, step: int) -> float:
    """Probability that an input is the true symbol, in the step that follows `i = step - 1` others.

    Linear ``1 - c i``, exponential ``k^i``, inverse sigmoid ``σ(ln k - i / k) = k / (k + exp(i / k))``; not below the
    floor (Bengio et al. 2015, section 2.4). 1 under teacher forcing, 0 when running freely.

    Parameters
    ----------
    feeding : config.Feeding
    step : int
        Counted from 1.
    """
    if not isinstance(feeding, config.ScheduledSampling):
        return float(isinstance(feeding, config.TeacherForcing))
    i, rate = step - 1, feeding.rate
    decays = {
        "linear": lambda: 1.0 - rate * i,
        "exponential": lambda: rate**i,
        "inverse_sigmoid": lambda: rate / (rate + math.exp(min(i / rate, 700.0))),
    }
    return max(feeding.floor, decays[feeding.decay]())


def chosen_inputs(
    model: SequenceModel,
    source: Tensor,
    source_mask: Tensor,
    inputs: Tensor,
    *,
    feeding: config.Feeding,
    step: int,
    seed: int,
    rows: NDArray[Any],
) -> Tensor:
    """Decoder inputs (B, T) of a training step: the true ones, or what the model says in their place.

    Parameters
    ----------
    model : module with the decoder contract
    source, source_mask : Tensor (B, S)
    inputs : int64 Tensor (B, T)
        The true ones; the first column is `BOS` and stays.
    feeding : config.Feeding
    step : int
        Counted from 1.
    seed : int
        With step, row and place it decides every chance: no batch mate, process or interruption changes one.
    rows : int array (B,)
        Where each row stands in the data.

    Notes
    -----
    The model goes step by step without a graph and, as in use, without dropout. The loss is then that of one call on
    the chosen inputs, which the decoder contract makes equal to the loss of stepping, for every architecture; and since
    no gradient flows through a choice, the gradients are equal too. With dropout the loss sees masks that the choices
    did not see.
    """
    truth = truth_probability(feeding, step)
    if truth >= 1.0 or isinstance(feeding, config.TeacherForcing):
        return inputs
    module: Any = model
    was_training = module.training
    module.eval()
    try:
        return _stepped(model, source, source_mask, inputs, truth, _chances(inputs, seed, step, rows), feeding.draw)
    finally:
        module.train(was_training)


def _chances(inputs: Tensor, seed: int, step: int, rows: NDArray[Any]) -> Tensor:
    """Two uniform numbers an input after the first, (B, T - 1, 2): whether it is true, and which symbol else."""
    numbers = uniforms(seed, step, rows=rows, count=2 * (inputs.shape[1] - 1))
    return torch.from_numpy(numbers.reshape(len(rows), -1, 2)).to(inputs.device)


@torch.no_grad()
def _stepped(
    model: SequenceModel,
    source: Tensor,
    source_mask: Tensor,
    inputs: Tensor,
    truth: float,
    chances: Tensor,
    draw: str,
) -> Tensor:
    memory = model.encode(source, source_mask)
    state = model.initial_state(memory, len(source))
    fed = [inputs[:, 0]]
    for true, chance in zip(inputs[:, 1:].unbind(1), chances.unbind(1), strict=True):
        logits, state, _ = model.decode(fed[-1].unsqueeze(1), memory, state)
        own = _own_symbol(logits[:, -1], chance[:, 1], draw)
        fed.append(torch.where(chance[:, 0] < truth, true, own))
    return torch.stack(fed, dim=1)


def _own_symbol(logits: Tensor, uniform: Tensor, draw: str) -> Tensor:
    """The model's next symbol (B,) from logits (B, V), never `PAD` or `BOS`; drawn by inverting its distribution."""
    logits = logits.double().index_fill(1, torch.tensor([PAD, BOS], device=logits.device), -torch.inf)
    if draw == "argmax":
        return logits.argmax(dim=1)
    cumulative = torch.softmax(logits, dim=1).cumsum(dim=1)  # (B, V)
    below = torch.searchsorted(cumulative, (uniform * cumulative[:, -1]).unsqueeze(1), right=True)  # (B, 1)
    return below.squeeze(1).clamp(max=logits.shape[1] - 1)  # rounding may reach the whole sum
