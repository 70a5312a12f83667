"""Faults planted in our own models and layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_healthy_models import ours
from torch import nn
from tutorial_models import pairs

from unrolled.diagnosis import check_state_handling, examine
from unrolled.diagnosis.regions import difference
from unrolled.models import attention, autoregressive, recurrent_decoder, sight, transformer


def find(model: nn.Module, name: str, **options) -> str:
    """Names of the modules of a finding that must be there."""
    examination = examine(model, pairs(), overfit=False, **options)
    found = [str(one.where) for one in examination if one.name == name]
    assert found, f"{name} not among {examination.names}; {examination.skipped}"
    return found[0]


def unmasked(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1)


def over_steps(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores.masked_fill(~mask, -1e9), 1)


def test_attention_without_a_source_mask(monkeypatch) -> None:
    monkeypatch.setattr(recurrent_decoder, "masked_softmax", unmasked)
    assert "decoder" in find(ours("lstm general"), "padding_leak")


def test_attention_over_the_wrong_axis(monkeypatch) -> None:
    monkeypatch.setattr(recurrent_decoder, "masked_softmax", over_steps)
    assert "decoder" in find(ours("lstm general"), "attention_axis")


def test_self_attention_that_is_not_causal(monkeypatch) -> None:
    def everything(query, keys, values, mask, *, causal=False):
        return attention.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    monkeypatch.setattr(sight, "dot_product_attention", everything)
    assert "decoder.layers.0" in find(ours("transformer rotary"), "future_leak")


def test_attention_without_a_scale(monkeypatch) -> None:
    def unscaled(query, keys, values, mask, *, causal=False):
        return attention.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, scale=1.0
        )

    monkeypatch.setattr(sight, "dot_product_attention", unscaled)
    assert "encoder.layers.0" in find(ours("transformer rotary"), "attention_scale")


def test_positions_that_forget_the_past(monkeypatch) -> None:
    def from_zero(self, tokens, memory, state, **options):
        return original(self, tokens, memory, state._replace(position=torch.zeros_like(state.position)), **options)

    original = transformer.TransformerDecoder.forward
    monkeypatch.setattr(transformer.TransformerDecoder, "forward", from_zero)
    assert "step 1" in find(ours("rnn to transformer"), "stepwise_mismatch")


def test_cell_state_dropped(monkeypatch) -> None:
    def without_cells(self, tokens, memory, state, **options):
        layers = tuple(layer._replace(c=torch.zeros_like(layer.c)) for layer in state.layers)
        return original(self, tokens, memory, state._replace(layers=layers), **options)

    original = recurrent_decoder.RecurrentDecoder.forward
    monkeypatch.setattr(recurrent_decoder.RecurrentDecoder, "forward", without_cells)
    find(ours("lstm general"), "state_lost")


def test_reset_that_does_nothing(monkeypatch) -> None:
    def without_reset(self, tokens, memory, state, *, reset=None, **options):
        return original(self, tokens, memory, state, **options)

    original = autoregressive.Autoregressive.decode
    monkeypatch.setattr(autoregressive.Autoregressive, "decode", without_reset)
    find(ours("lstm general"), "state_carried")


def test_state_passed_on_attached() -> None:
    found = check_state_handling(ours("lstm general"), pairs(), carry=lambda state: state)
    assert [one.name for one in found] == ["state_not_detached"]
    assert check_state_handling(ours("lstm general"), pairs(), carry=lambda state: state.detach()) == []


def in_place(change: Callable[[nn.Module], object]) -> Callable[[nn.Module], nn.Module]:
    def apply(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            change(model)
        return model

    return apply


@pytest.mark.parametrize(
    ("model", "change", "name", "place"),
    [
        (
            "lstm general",
            in_place(lambda m: m.decoder.layers[0].fwd.bias_hh[24 // 2 : 24].fill_(1.0)),
            "forget_bias",
            "decoder.layers.0.fwd",
        ),
        (
            "lstm general",
            in_place(lambda m: m.encoder.layers[0].bwd.bias_ih[12:24].fill_(-3.0)),
            "forget_bias",
            "encoder.layers.0.bwd",
        ),
        ("transformer rotary", in_place(lambda m: m.decoder.output.weight.mul_(60.0)), "first_loss", "the model"),
        (
            "rnn to transformer",
            in_place(lambda m: m.encoder.layers[1].fwd.weight_hh.mul_(0.05)),
            "vanishing_gradient_time",
            "encoder.layers.1.fwd",
        ),
    ],
)
def test_start_values(model: str, change, name: str, place: str) -> None:
    torch.manual_seed(0)
    assert place in find(change(ours(model)), name)


def test_an_output_layer_that_starts_at_zero_is_no_fault() -> None:
    zero = in_place(lambda m: [weight.mul_(0) for weight in m.decoder.output.parameters()])
    assert not examine(zero(ours("transformer rotary")), pairs())


def test_complex_tensors_differ_in_either_part() -> None:
    turn = torch.polar(torch.ones(3), torch.arange(3.0))
    assert difference(turn, turn.clone()) == 0.0
    assert difference(turn, turn.conj()) > 1.0
