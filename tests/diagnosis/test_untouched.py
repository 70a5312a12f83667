"""Whatever a check does, the model, its gradients, its mode and the random state are as they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from tutorial_models import GPT, KeptStateLM, LSTMSeq2Seq, TransformerSeq2Seq, V, pairs, text

from unrolled import diagnosis
from unrolled.diagnosis import Adapter, examine
from unrolled.diagnosis.untouched import untouched

CHECKS = [
    "activations", "attention_numbers", "check_attention", "check_batch_independence", "check_causal",
    "check_eval_mode", "check_finite", "check_first_loss", "check_labels", "check_memory",
    "check_overfits_one_batch", "check_padding", "check_source", "check_state_handling", "check_stepwise",
    "exposure_gap", "forget_gates", "gradient_flow", "jacobian_norms",
]  # fmt: skip


class Normed(nn.Module):
    """Has running statistics, a list, a tensor and a random generator's traces in its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(V, 16), nn.GRU(16, 16, batch_first=True)
        self.norm, self.drop, self.out = nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, V)
        self.seen, self.total, self.last = [], torch.zeros(1), None

    def forward(self, x):
        h = self.rnn(self.embed(x))[0]
        self.seen.append(len(x))
        self.total += 1
        self.last = h
        return self.out(self.drop(self.norm(h.transpose(1, 2)).transpose(1, 2)))


class Failing(nn.Module):
    """Raises at its fourth call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.calls = GPT(), nn.Dropout(0.5), []

    def forward(self, x):
        self.calls.append(1)
        y = self.drop(self.inner(x)[0])
        if torch.rand(()) > -1 and x.shape[0] > 0 and Failing.left <= 0:
            raise RuntimeError("no more")
        Failing.left -= 1
        return y

    left = 4


def snapshot(model: nn.Module) -> dict:
    """Everything that must not change, hooks included."""
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "gradients": {name: None if w.grad is None else w.grad.clone() for name, w in model.named_parameters()},
        "storage": {name: w.data_ptr() for name, w in model.named_parameters()},
        "modes": [part.training for part in model.modules()],
        "flags": [w.requires_grad for w in model.parameters()],
        "hooks": [(len(p._forward_hooks), len(p._forward_pre_hooks), len(p._backward_hooks)) for p in model.modules()],
        "attributes": [sorted(vars(part)) for part in model.modules()],
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),  # noqa: NPY002
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def assert_untouched(model: nn.Module, run) -> None:
    model.train()
    list(model.modules())[1].eval()  # a mode of its own
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 0.5)
    before = snapshot(model)
    run()
    after = snapshot(model)
    assert [part for part in before if not same(before[part], after[part])] == []


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", [LSTMSeq2Seq, TransformerSeq2Seq])
def test_checks_leave_everything_as_it_was(check: str, model) -> None:
    torch.manual_seed(0)
    subject = model()
    options = {"steps": 3} if check == "check_overfits_one_batch" else {}
    assert_untouched(subject, lambda: getattr(diagnosis, check)(subject, pairs(), **options))


def test_statistics_and_attributes_stay() -> None:
    torch.manual_seed(0)
    model = Normed()
    model(text().inputs)
    seen, total, last = list(model.seen), model.total.clone(), model.last
    assert_untouched(model, lambda: examine(model, text(), overfit=False))
    assert (model.seen, model.last is last) == (seen, True)
    assert torch.equal(model.total, total)


def test_kept_state_stays() -> None:
    model = KeptStateLM("kept detached")
    model(text().inputs)
    kept = model.hidden
    examine(model, text(), overfit=False)
    assert model.hidden is kept


@pytest.mark.parametrize("calls", [0, 1, 2, 5, 9])
def test_also_after_an_exception(calls: int) -> None:
    torch.manual_seed(0)
    model = Failing()

    def run() -> None:
        for check in (diagnosis.check_causal, diagnosis.gradient_flow, diagnosis.check_attention):
            Failing.left = calls
            with pytest.raises(RuntimeError, match="no more"):
                for _ in range(9):
                    check(model, text())

    assert_untouched(model, run)
    assert model.calls == []


def test_under_no_grad_and_inference_mode() -> None:
    torch.manual_seed(0)
    model, broken = GPT(), GPT(fault="no mask")
    with torch.no_grad():
        assert not examine(model, text(), overfit=False)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        assert "future_leak" in examine(broken, text(), overfit=False).names


def test_weights_are_the_same_tensors_after_training_on_copies() -> None:
    model = GPT(tied=True)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with untouched(model, keep_weights=False):
        with torch.no_grad():
            model.wte.weight.add_(1)
        assert model.head.weight is model.wte.weight
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())


def test_a_plain_function_has_random_state_only() -> None:
    state = torch.get_rng_state()
    table = torch.randn(V, V)
    torch.set_rng_state(state)
    found = examine(lambda x: table[x] + 0 * torch.randn(1), text(), adapter=Adapter(), overfit=False)
    assert "state_lost" in found.names  # a bigram table remembers nothing
    assert torch.equal(torch.get_rng_state(), state)


class Remembering(nn.Module):
    """Keeps its state in an object that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(V, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, V)
        self.memory = SimpleMemory()

    def forward(self, x):
        h = self.memory.h if self.memory.h is not None and self.memory.h.shape[1] == len(x) else None
        y, h = self.rnn(self.embed(x), h)
        self.memory.h = h.detach()
        return self.out(y)


class SimpleMemory:
    h = None


def test_objects_that_refer_to_each_other_are_left_alone() -> None:
    one, other = SimpleMemory(), SimpleMemory()
    one.others, other.others = [other], [one]
    torch.manual_seed(0)
    model = Remembering()
    model.memory.others = [one]
    assert diagnosis.check_eval_mode(model, text()) == []
    assert one.others == [other]


def test_a_state_in_an_object_is_found_under_its_name_and_put_back() -> None:
    torch.manual_seed(0)
    model = Remembering()
    assert diagnosis.check_eval_mode(model, text()) == diagnosis.check_causal(model, text()) == []
    assert [one.name for one in diagnosis.check_state_handling(model, text())] == ["state_carried"]
    assert model.memory.h is None
    assert vars(model.memory) == {}
