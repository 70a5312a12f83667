"""The recurrence itself: gates of all steps in, hidden states of all steps out.

The input products of all time steps are one matrix product outside of this file (or a gather from a table of them);
what is left is the part that is truly sequential. Each cell exists twice with the same signature: `*_scan_plain`, a
readable loop that autograd differentiates, and a fast `autograd.Function` whose backward pass is written out: one
product per step for all gates and directions, weight gradients in one product after the loop. The plain ones are the
test of the fast ones; the two historic cells (no forget gate, reset before the product) have the plain form alone.

Axes: D directions, T steps, B batch, H hidden. Rows are right-padded (a backward direction gets its rows reversed
within their lengths), so that padding can never reach a real step and the loop needs no mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unrolled.models.reused import Reused, Steps

__all__ = [
    "gru_reset_before_scan",
    "gru_scan",
    "gru_scan_plain",
    "lstm_fused",
    "lstm_scan",
    "lstm_scan_plain",
    "lstm_ungated_scan",
    "rnn_scan",
    "rnn_scan_plain",
]


# --- LSTM ------------------------------------------------------------------------------------------------------------


def lstm_scan_plain(gates: Tensor, weight: Reused, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Step through an LSTM with autograd.

    ``i, f, o = σ(·)``, ``g = tanh(·)`` of ``gates_t + W h_{t−1}``; ``c_t = f ⊙ c_{t−1} + i ⊙ g``;
    ``h_t = o ⊙ tanh(c_t)`` (Hochreiter & Schmidhuber 1997; forget gate of Gers et al. 2000).

    Parameters
    ----------
    gates : Tensor (D, T, B, 4H)
        Input part of the gates, in the order i f g o, biases included.
    weight : Reused (D, 4H, H)
    h, c : Tensor (D, B, H)
        Start state.

    Returns
    -------
    h, c : Tensor (D, T, B, H)
        States after each step.
    """
    hs, cs = [], []
    for step in gates.unbind(1):
        i, f, g, o = (step + weight.product(h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        hs.append(h)
        cs.append(c)
    return torch.stack(hs, dim=1), torch.stack(cs, dim=1)


def lstm_scan(gates: Tensor, weight: Reused, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Fast twin of `lstm_scan_plain`: same arguments, same result."""
    result: tuple[Tensor, Tensor] = _LSTMScan.apply(gates, weight.weight, h, c, weight.steps)  # type: ignore[no-untyped-call]
    return result


class _LSTMScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, steps: Steps | None
    ) -> tuple[Tensor, Tensor]:
        D, T, B, H = *gates.shape[:3], h0.shape[-1]
        act = gates.new_empty(D, T, B, 4 * H)
        h = gates.new_empty(D, T + 1, B, H)
        c = gates.new_empty(D, T + 1, B, H)
        tanh_c = gates.new_empty(D, T, B, H)
        h[:, 0], c[:, 0] = h0, c0
        transposed = weight.transpose(1, 2)
        for t in range(T):
            a = act[:, t]
            torch.baddbmm(gates[:, t], h[:, t], transposed, out=a)
            a[..., : 2 * H].sigmoid_()
            a[..., 2 * H : 3 * H].tanh_()
            a[..., 3 * H :].sigmoid_()
            i, f, g, o = a.split(H, dim=-1)
            torch.mul(f, c[:, t], out=c[:, t + 1]).addcmul_(i, g)
            torch.tanh(c[:, t + 1], out=tanh_c[:, t])
            torch.mul(o, tanh_c[:, t], out=h[:, t + 1])
        ctx.save_for_backward(act, h, c, tanh_c, weight)
        ctx.steps = steps
        return h[:, 1:], c[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h_all: Tensor, d_c_all: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        act, h, c, tanh_c, weight = ctx.saved_tensors
        T, H = tanh_c.shape[1], tanh_c.shape[3]
        i, f, g, o = act.split(H, dim=-1)
        # Everything that does not depend on the later steps, for all steps at once:
        # d_gates = factor ⊙ (d_c, d_c, d_c, d_h) and d_c += d_h ⊙ through_h.
        factor = torch.empty_like(act)
        torch.mul(i * (1 - i), g, out=factor[..., :H])
        torch.mul(f * (1 - f), c[:, :T], out=factor[..., H : 2 * H])
        torch.mul(1 - g * g, i, out=factor[..., 2 * H : 3 * H])
        torch.mul(o * (1 - o), tanh_c, out=factor[..., 3 * H :])
        through_h = o * (1 - tanh_c * tanh_c)
        d_gates = factor  # overwritten step by step
        d_h = d_h_all[:, T - 1]
        d_c = torch.zeros_like(c[:, 0])
        for t in reversed(range(T)):
            d_c = torch.addcmul(d_c.add_(d_c_all[:, t]), d_h, through_h[:, t])
            d_gates[:, t, :, : 3 * H].unflatten(-1, (3, H)).mul_(d_c.unsqueeze(-2))
            d_gates[:, t, :, 3 * H :].mul_(d_h)
            d_c = d_c * f[:, t]
            d_h = torch.baddbmm(d_h_all[:, t - 1], d_gates[:, t], weight) if t else torch.bmm(d_gates[:, t], weight)
        _add_steps(ctx.steps, h[:, :T], d_gates)
        return d_gates, None, d_h, d_c, None


def _add_steps(steps: Steps | None, h: Tensor, d_gates: Tensor) -> None:
    """What all steps contribute to ``d_W = Σ_t d_gates_tᵀ h_{t−1}``: (D, T, B, H), (D, T, B, G)."""
    if steps is not None:
        steps.add(h.flatten(1, 2), d_gates.flatten(1, 2))


def lstm_fused(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Input product and `lstm_scan` in oneDNN's kernel, over rows without padding.

    x (B, T, E) in float32 on a CPU, weights (4H, E) and (4H, H), start (B, H) each → outputs (B, T, H), last h and c
    (B, H). The states c of the other steps stay inside, so that rows cannot end before T.
    """
    output, last_h, last_c = torch.lstm(
        x.transpose(0, 1),
        (h.unsqueeze(0), c.unsqueeze(0)),
        (weight_ih, weight_hh, bias_ih, bias_hh),
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=torch.is_grad_enabled(),
        bidirectional=False,
        batch_first=False,
    )
    return output.transpose(0, 1), last_h.squeeze(0), last_c.squeeze(0)


def lstm_ungated_scan(gates: Tensor, weight: Reused, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Step through the LSTM of 1997, without a forget gate: ``c_t = c_{t−1} + i ⊙ g``, so that ∂c_t/∂c_{t−1} = I.

    Arguments and results as in `lstm_scan`, with three gates i g o (Hochreiter & Schmidhuber 1997).
    """
    hs, cs = [], []
    for step in gates.unbind(1):
        i, g, o = (step + weight.product(h)).chunk(3, dim=-1)
        c = c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        hs.append(h)
        cs.append(c)
    return torch.stack(hs, dim=1), torch.stack(cs, dim=1)


# --- GRU -------------------------------------------------------------------------------------------------------------


def gru_scan_plain(gates: Tensor, weight: Reused, bias: Tensor, h: Tensor) -> Tensor:
    """Step through a GRU with autograd.

    ``r, z = σ(·)``; ``n = tanh(gates_n + r ⊙ (W_n h_{t−1} + b_n))``; ``h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}``
    (Cho et al. 2014, with the reset gate after the recurrent product as in cuDNN and PyTorch).

    Parameters
    ----------
    gates : Tensor (D, T, B, 3H)
        Input part of the gates, in the order r z n, input biases included.
    weight : Reused (D, 3H, H)
    bias : Tensor (D, 3H)
        Recurrent bias; that of n stands inside the reset.
    h : Tensor (D, B, H)
        Start state.

    Returns
    -------
    h : Tensor (D, T, B, H)
    """
    hs = []
    for step in gates.unbind(1):
        x_r, x_z, x_n = step.chunk(3, dim=-1)
        h_r, h_z, h_n = weight.product(h, bias.unsqueeze(1)).chunk(3, dim=-1)
        r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        h = (1 - z) * n + z * h
        hs.append(h)
    return torch.stack(hs, dim=1)


def gru_scan(gates: Tensor, weight: Reused, bias: Tensor, h: Tensor) -> Tensor:
    """Fast twin of `gru_scan_plain`: same arguments, same result."""
    result: Tensor = _GRUScan.apply(gates, weight.weight, bias, h, weight.steps)  # type: ignore[no-untyped-call]
    return result


class _GRUScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, steps: Steps | None) -> Tensor:
        D, T, B, H = *gates.shape[:3], h0.shape[-1]
        rz = gates.new_empty(D, T, B, 2 * H)
        n = gates.new_empty(D, T, B, H)
        recurrent_n = gates.new_empty(D, T, B, H)
        h = gates.new_empty(D, T + 1, B, H)
        h[:, 0] = h0
        transposed, offset = weight.transpose(1, 2), bias.unsqueeze(1)
        for t in range(T):
            product = torch.baddbmm(offset, h[:, t], transposed)
            torch.add(gates[:, t, :, : 2 * H], product[..., : 2 * H], out=rz[:, t]).sigmoid_()
            recurrent_n[:, t] = product[..., 2 * H :]
            r, z = rz[:, t].split(H, dim=-1)
            torch.addcmul(gates[:, t, :, 2 * H :], r, recurrent_n[:, t], out=n[:, t]).tanh_()
            torch.lerp(n[:, t], h[:, t], z, out=h[:, t + 1])
        ctx.save_for_backward(rz, n, recurrent_n, h, weight)
        ctx.steps = steps
        return h[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h_all: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        rz, n, recurrent_n, h, weight = ctx.saved_tensors
        D, T, B, H = n.shape
        r, z = rz.split(H, dim=-1)
        # d_recurrent = factor ⊙ d_h for r, z and the recurrent half of n; d_gates differs in n only, by the reset gate.
        d_recurrent = n.new_empty(D, T, B, 3 * H)
        through_n = (1 - z) * (1 - n * n)
        torch.mul(through_n * recurrent_n, r * (1 - r), out=d_recurrent[..., :H])
        torch.mul(h[:, :T] - n, z * (1 - z), out=d_recurrent[..., H : 2 * H])
        torch.mul(through_n, r, out=d_recurrent[..., 2 * H :])
        d_n = through_n  # overwritten step by step
        d_h = d_h_all[:, T - 1]
        for t in reversed(range(T)):
            d_recurrent[:, t].unflatten(-1, (3, H)).mul_(d_h.unsqueeze(-2))
            d_n[:, t].mul_(d_h)
            d_h = torch.baddbmm(d_h * z[:, t], d_recurrent[:, t], weight)
            if t:
                d_h += d_h_all[:, t - 1]
        _add_steps(ctx.steps, h[:, :T], d_recurrent)
        d_gates = torch.cat([d_recurrent[..., : 2 * H], d_n], dim=-1)
        return d_gates, None, d_recurrent.sum(dim=(1, 2)), d_h, None


def gru_reset_before_scan(gates: Tensor, weight: Reused, h: Tensor) -> Tensor:
    """Step through a GRU that resets before the recurrent product: ``n = tanh(gates_n + W_n (r ⊙ h_{t−1}))``.

    Arguments and result as in `gru_scan`, all biases in `gates` (Cho et al. 2014, eq. 8).
    """
    weight_rz, weight_n = weight.weight.transpose(1, 2).tensor_split([2 * h.shape[-1]], dim=2)
    hs = []
    for step in gates.unbind(1):
        x_rz, x_n = step.tensor_split([2 * h.shape[-1]], dim=-1)
        r, z = torch.sigmoid(torch.baddbmm(x_rz, h, weight_rz)).chunk(2, dim=-1)
        n = torch.tanh(torch.baddbmm(x_n, r * h, weight_n))
        h = (1 - z) * n + z * h
        hs.append(h)
    return torch.stack(hs, dim=1)


# --- RNN -------------------------------------------------------------------------------------------------------------


def rnn_scan_plain(gates: Tensor, weight: Reused, h: Tensor, *, is_relu: bool = False) -> Tensor:
    """Step through a simple recurrent net with autograd: ``h_t = tanh(gates_t + W h_{t−1})`` (Elman 1990).

    Parameters
    ----------
    gates : Tensor (D, T, B, H)
        Input part, biases included.
    weight : Reused (D, H, H)
    h : Tensor (D, B, H)
        Start state.
    is_relu : bool
        ``max(0, ·)`` instead of tanh.

    Returns
    -------
    h : Tensor (D, T, B, H)
    """
    squash = torch.relu if is_relu else torch.tanh
    hs = []
    for step in gates.unbind(1):
        h = squash(step + weight.product(h))
        hs.append(h)
    return torch.stack(hs, dim=1)


def rnn_scan(gates: Tensor, weight: Reused, h: Tensor, *, is_relu: bool = False) -> Tensor:
    """Fast twin of `rnn_scan_plain`: same arguments, same result."""
    result: Tensor = _RNNScan.apply(gates, weight.weight, h, is_relu, weight.steps)  # type: ignore[no-untyped-call]
    return result


class _RNNScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h0: Tensor, is_relu: bool, steps: Steps | None) -> Tensor:
        D, T, B, H = *gates.shape[:3], h0.shape[-1]
        h = gates.new_empty(D, T + 1, B, H)
        h[:, 0] = h0
        transposed = weight.transpose(1, 2)
        squash = torch.relu_ if is_relu else torch.tanh_
        for t in range(T):
            squash(torch.baddbmm(gates[:, t], h[:, t], transposed, out=h[:, t + 1]))
        ctx.save_for_backward(h, weight)
        ctx.steps = steps
        ctx.is_relu = is_relu
        return h[:, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_h_all: Tensor) -> tuple[Tensor, None, Tensor, None, None]:
        h, weight = ctx.saved_tensors
        T = h.shape[1] - 1
        d_gates = (h[:, 1:] > 0).to(h.dtype) if ctx.is_relu else 1 - h[:, 1:] * h[:, 1:]
        d_h = d_h_all[:, T - 1]
        for t in reversed(range(T)):
            d_gates[:, t].mul_(d_h)
            d_h = torch.baddbmm(d_h_all[:, t - 1], d_gates[:, t], weight) if t else torch.bmm(d_gates[:, t], weight)
        _add_steps(ctx.steps, h[:, :T], d_gates)
        return d_gates, None, d_h, None, None
