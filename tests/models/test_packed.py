"""Models with packed weights answer as the plain ones do."""

import copy
import pickle

import pytest
import torch
from conftest_models import COMBINATIONS, LANGUAGE_MODELS, SIZES, build
from torch import nn

from unrolled.models.engine import TorchEngine
from unrolled.models.packed import packed

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
each_model = pytest.mark.parametrize("pair", COMBINATIONS + LANGUAGE_MODELS, ids="-".join)


@torch.inference_mode()
def outputs(model, rows):
    """Logits of four tokens at once, and of one more."""
    generator = torch.Generator().manual_seed(rows)
    source, target = (torch.randint(4, 12, (rows, 5), generator=generator) for _ in range(2))
    has_source = hasattr(model, "encoder")
    memory = model.encode(source, torch.ones_like(source, dtype=torch.bool)) if has_source else None
    first = model.decode(target[:, :4], memory, model.initial_state(memory, rows))
    return first.logits, model.decode(target[:, 4:], memory, first.state).logits


@each_model
@pytest.mark.parametrize("rows", [1, 3])
def test_a_packed_model_answers_as_before(pair, rows):
    model = build(*pair).float()
    twin = packed(model)
    assert not any(isinstance(module, nn.Linear) for module in twin.modules())
    for plain, fast in zip(outputs(model, rows), outputs(twin, rows), strict=True):
        assert fast.shape[-1] == SIZES.target
        torch.testing.assert_close(fast, plain, **CLOSE)


def test_a_packed_model_answers_in_half_precision():
    model = build("rotary", "rotary").to(torch.bfloat16)
    for plain, fast in zip(outputs(model, 3), outputs(packed(model), 3), strict=True):
        assert fast.dtype == torch.bfloat16
        torch.testing.assert_close(fast, plain, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(("size", "is_plain"), [(5, True), (50_000, False)])
def test_the_weights_are_really_packed(size, is_plain):
    """Results come from the packed copy; that of one row of a small layer from the weight, which is shared."""
    layer = nn.Sequential(nn.Linear(6, size))
    x = torch.randn(3, 6)
    expected, twin = layer(x), packed(layer)
    with torch.inference_mode():
        layer[0].weight.zero_()
        torch.testing.assert_close(twin(x), expected, **CLOSE)
        alone = layer[0].bias.unsqueeze(0) if is_plain else expected[:1]
        torch.testing.assert_close(twin(x[:1]), alone, **CLOSE)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_packed_model_can_be_copied(copied):
    twin = packed(build("rotary", "rotary").float())
    for a, b in zip(outputs(twin, 3), outputs(copied(twin), 3), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_what_there_are_no_blocks_for_stays_plain(dtype):
    layer = nn.Sequential(nn.Linear(6, 5)).to(dtype)
    assert type(packed(layer)[0]) is nn.Linear


def test_half_precision_without_support_stays_plain(monkeypatch):
    monkeypatch.setattr("unrolled.models.packed._has_bfloat16", lambda: False)
    assert type(packed(nn.Sequential(nn.Linear(6, 5)).bfloat16())[0]) is nn.Linear


def test_gradients_flow_through_a_packed_model():
    layer = nn.Sequential(nn.Linear(6, 5))
    x = torch.randn(3, 6, requires_grad=True)
    packed(layer)(x).sum().backward()
    torch.testing.assert_close(x.grad, layer[0].weight.sum(0).expand_as(x))
    torch.testing.assert_close(layer[0].weight.grad, x.detach().sum(0).expand(5, -1))


@pytest.mark.parametrize("is_final", [False, True])
def test_an_engine_packs_final_weights_and_leaves_the_model_alone(is_final):
    model = build("rotary", "rotary").float()
    engine = TorchEngine(model, vocabulary_size=SIZES.target, is_final=is_final)
    assert engine.model is model
    assert any(isinstance(module, nn.Linear) for module in model.modules())
    answering = engine._answering
    assert any(isinstance(module, nn.Linear) for module in answering.modules()) != is_final
    theirs, ours = dict(answering.named_parameters()), dict(model.named_parameters())
    assert theirs["decoder.embedding.weight"] is ours["decoder.embedding.weight"]
