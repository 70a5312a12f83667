"""The scale of attention in every way to write it: found where it is wrong, and never where it is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from tutorial_models import PAD, V, pairs, text

from unrolled.diagnosis import Adapter, attention_numbers, check_attention, check_eval_mode
from unrolled.diagnosis.signature import arguments

HEADS, K = 4, 8
HIDDEN = -1e9


def plain(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return (q @ k.mT) * scale


def index_put_by_mask(q, k, scale, visible):
    scores = plain(q, k, scale)
    scores[:, :, ~visible] = -torch.inf
    return scores


def index_put_by_places(q, k, scale, visible):
    scores, (rows, columns) = plain(q, k, scale), torch.triu_indices(*visible.shape, 1)
    scores[..., rows, columns] = -torch.inf
    return scores


def gpt2(q, k, scale, visible):
    return plain(q, k, scale) * visible.float() - 1e10 * (1 - visible.float())


def mask_first(q, k, scale, visible):
    return (1 - visible.float()) * HIDDEN + plain(q, k, scale)


def tril_then_filled(q, k, scale, visible):
    scores = plain(q, k, scale).tril()
    return scores.masked_fill(scores == 0, HIDDEN)


def copied(q, k, scale, visible):
    scores = plain(q, k, scale)
    return torch.empty_like(scores).copy_(scores).masked_fill(~visible, HIDDEN)


def row_by_row(q, k, scale, visible):
    scores = plain(q, k, scale)
    for step in range(len(visible) - 1):
        scores[:, :, step, step + 1 :] = HIDDEN
    return scores


def rotated(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(x.shape[-2]).float(), 100 ** (-torch.arange(0, K, 2) / K)).repeat(1, 2)
    return x * angles.cos() + torch.cat([-x[..., K // 2 :], x[..., : K // 2]], -1) * angles.sin()


def rotated_as_complex(x: Tensor) -> Tensor:
    angles = torch.outer(torch.arange(x.shape[-2]).float(), 100 ** (-torch.arange(0, K, 2) / K))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def rotary(q, k, scale, visible):
    return plain(rotated(q * scale), rotated(k), 1.0).masked_fill(~visible, HIDDEN)


def rotary_as_complex(q, k, scale, visible):
    return plain(rotated_as_complex(q * scale), rotated_as_complex(k), 1.0).masked_fill(~visible, HIDDEN)


def product_written_out(q, k, scale, visible):
    return (q[..., :, None, :] * k[..., None, :, :] * scale).sum(-1).masked_fill(~visible, HIDDEN)


def keys_of_groups(q, k, scale, visible):
    return plain(q, (k * scale)[:, ::2].repeat_interleave(2, 1), 1.0).masked_fill(~visible, HIDDEN)


def keys_joined(q, k, scale, visible):
    k = k * scale
    return plain(q, torch.cat([k[:, :, :3], k[:, :, 3:]], 2), 1.0).masked_fill(~visible, HIDDEN)


def key_of_zeros(q, k, scale, visible):
    k = torch.cat([k[:, :, 1:] * scale, torch.zeros_like(k[:, :, :1])], 2)
    return plain(q, k, 1.0).masked_fill(~visible, HIDDEN)


def normalised(q, k, scale, visible):
    return plain(nn.functional.layer_norm(5.0 * q, (K,)), k, scale).masked_fill(~visible, HIDDEN)


STYLES = [
    index_put_by_mask, index_put_by_places, gpt2, mask_first, tril_then_filled, copied, row_by_row, rotary,
    rotary_as_complex, product_written_out, keys_of_groups, keys_joined, key_of_zeros,
    normalised,
]  # fmt: skip


def cache_filled(q, k, scale, visible):
    cache = torch.zeros_like(k)
    for step in range(k.shape[2]):
        cache[:, :, step] = k[:, :, step] * scale
    return plain(q, cache, 1.0).masked_fill(~visible, HIDDEN)


def tamed(q, k, scale, visible):
    return plain(torch.tanh(q * scale), k, 1.0).masked_fill(~visible, HIDDEN)


def summed_up(q, k, scale, visible):
    return plain((q[..., None, :] * scale).sum(-2), k, 1.0).masked_fill(~visible, HIDDEN)


UNKNOWN = [cache_filled, tamed, summed_up]
"""A scale that is there and whose size is not followed."""


class Attention(nn.Module):
    """One layer, whose scores are computed in a given way."""

    def __init__(self, scores: Callable[..., Tensor], scale: float) -> None:
        super().__init__()
        self.scores, self.scale = scores, scale
        self.embed, self.qkv, self.out = nn.Embedding(V, 32), nn.Linear(32, 96), nn.Linear(32, V)

    def forward(self, x: Tensor) -> Tensor:
        B, T = x.shape
        split = self.qkv(self.embed(x)).chunk(3, -1)
        q, k, v = (part.view(B, T, HEADS, K).transpose(1, 2) for part in split)  # (B, N, T, K)
        weights = self.scores(q, k, self.scale, torch.ones(T, T, dtype=torch.bool).tril()).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, -1))


@pytest.mark.parametrize("style", STYLES)
def test_the_scale_is_known_however_it_is_written(style: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    right, wrong = Attention(style, 1 / math.sqrt(K)), Attention(style, 1 / math.sqrt(HEADS * K))
    assert check_attention(right, text()) == []
    (measured,) = attention_numbers(right, text())
    assert measured.head_dim == K
    assert math.isclose(measured.factor, K**-0.5, rel_tol=1e-6)
    assert [one.name for one in check_attention(wrong, text())] == ["attention_scale"]


@pytest.mark.parametrize("style", UNKNOWN)
def test_nothing_is_said_about_a_scale_that_is_not_known(style: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = Attention(style, 1 / math.sqrt(K))
    (measured,) = attention_numbers(model, text())
    assert (measured.head_dim, measured.factor) == (K, None)
    assert check_attention(model, text()) == []


def test_a_frozen_model_is_right_as_well() -> None:
    torch.manual_seed(0)
    model = Attention(rotary, 1 / math.sqrt(K)).requires_grad_(False)
    assert check_attention(model, text()) == []


class Gated(Attention):
    """What is no attention although a softmax is summed against something, after an attention that is right."""

    def __init__(self, kind: str) -> None:
        super().__init__(rotary, 1 / math.sqrt(K))
        self.kind = kind
        self.gate, self.experts = nn.Linear(V, 3), nn.ModuleList(nn.Linear(V, V) for _ in range(3))
        self.share, self.mixing = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.eye(3) + 0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        gates = self.gate(h).softmax(-1)  # (B, T, experts)
        if self.kind == "top-2 experts":
            gates = gates * (gates >= gates.topk(2, -1).values[..., -1:])
        if self.kind == "two softmaxes apart":
            gates = gates - self.share * self.gate(h.flip(-1)).softmax(-1)
        if self.kind == "mixed by weights":
            gates = gates @ self.mixing
        return (gates[..., None] * torch.stack([expert(h) for expert in self.experts], 2)).sum(2)


@pytest.mark.parametrize("kind", ["experts", "top-2 experts", "two softmaxes apart", "mixed by weights"])
def test_gates_of_experts_are_no_attention(kind: str) -> None:
    torch.manual_seed(0)
    assert len(attention_numbers(Gated(kind), text())) == 1
    assert check_attention(Gated(kind), text()) == []


class Differential(Attention):
    """The difference of two attentions (Ye et al. 2024), or heads that talk to each other (Shazeer et al. 2020)."""

    def __init__(self, kind: str) -> None:
        super().__init__(rotary, 1 / math.sqrt(K))
        self.kind, self.share = kind, nn.Parameter(torch.tensor(0.3))
        self.talk = nn.Parameter(torch.eye(HEADS) + 0.1)

    def forward(self, x: Tensor) -> Tensor:
        B, T = x.shape
        q, k, v = (part.view(B, T, HEADS, K).transpose(1, 2) for part in self.qkv(self.embed(x)).chunk(3, -1))
        visible = torch.ones(T, T, dtype=torch.bool).tril()
        weights = plain(q, k, self.scale).masked_fill(~visible, HIDDEN).softmax(-1)
        if self.kind == "difference":
            weights = weights - self.share * plain(k, q, self.scale).masked_fill(~visible, HIDDEN).softmax(-1)
        else:
            weights = torch.einsum("bhts,hg->bgts", weights, self.talk)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, -1))


@pytest.mark.parametrize("kind", ["difference", "talking heads"])
def test_weights_that_are_combined_need_not_sum_to_1(kind: str) -> None:
    torch.manual_seed(0)
    assert check_attention(Differential(kind), text()) == []


class Steps(nn.Module):
    """A decoder with a hand-written cell: one query a step, `dot` without a scale."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.embed, self.out = factor, nn.Embedding(V, 16), nn.Linear(32, V)
        self.cell = nn.Linear(32, 16)

    def forward(self, src: Tensor, tgt: Tensor, teacher_force_ratio: float = 0.5) -> Tensor:
        keys, h, logits = self.embed(src), self.embed(src[:, 0]), []
        hidden = (src == PAD).float() * HIDDEN
        symbol = tgt[:, 0]
        for step in range(tgt.shape[1]):
            h = torch.tanh(self.cell(torch.cat([self.embed(symbol), h], -1)))
            weights = (self.factor * (keys @ h[:, :, None])[..., 0] + hidden).softmax(-1)
            context = (weights[:, None] @ keys)[:, 0]
            logits.append(self.out(torch.cat([h, context], -1)))
            is_forced = torch.rand(()) < teacher_force_ratio
            symbol = tgt[:, min(step + 1, tgt.shape[1] - 1)] if is_forced else logits[-1].argmax(-1)
        return torch.stack(logits, 1)


class Convolved(nn.Module):
    """Attention of a convolution decoder (Gehring et al. 2017): √½ of a sum, no other scale."""

    def __init__(self, factor: float = 0.5**0.5) -> None:
        super().__init__()
        self.factor, self.embed, self.out = factor, nn.Embedding(V, 16), nn.Linear(16, V)
        self.conv = nn.Conv1d(16, 16, 3)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        keys, inputs = self.embed(src), self.embed(tgt)
        h = torch.tanh(self.conv(nn.functional.pad(inputs.mT, (2, 0)))).mT
        scores = (h + inputs) * self.factor @ keys.mT
        weights = scores.masked_fill((src == PAD)[:, None], HIDDEN).softmax(-1)
        return self.out(h + weights @ keys)


@pytest.mark.parametrize("kind", [Steps, Convolved])
def test_one_head_may_go_without_a_scale_by_design(kind: type[Steps | Convolved]) -> None:
    torch.manual_seed(0)
    assert check_attention(kind(), pairs()) == []
    assert [one.name for one in check_attention(kind(0.3), pairs())] == ["attention_scale"]


@pytest.mark.parametrize("name", ["no_teacher_forcing", "teacher", "teacher_forcing_tokens", "tfidf"])
def test_what_only_looks_like_a_rate_of_truth_is_left_alone(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def forward(x, {name}=None): return {name}", scope)
    assert arguments(scope["forward"], text(), state=None, time_first=False).keys() == {"x"}


@pytest.mark.parametrize("name", ["teacher_force_ratio", "use_teacher_forcing", "tf", "tf_prob", "teacher_forcing"])
def test_a_foreign_decoder_is_always_fed_the_truth(name: str) -> None:
    torch.manual_seed(0)
    model = Steps()
    scope: dict[str, Any] = {"model": model}
    exec(f"def forward(src, tgt, {name}=0.5): return model(src, tgt, {name})", scope)
    assert check_eval_mode(scope["forward"], pairs()) == []
    with_half = Adapter(forward=lambda model, batch: model(batch.source, batch.inputs, 0.5))
    assert check_eval_mode(model, pairs(), adapter=with_half)
