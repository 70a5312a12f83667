"""The scale of attention in every way to write it: found where it is wrong, and never where it is right."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from tutorial_models import V, text

from unrolled.diagnosis import attention_numbers, check_attention

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
