"""Exact values of what is measured."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tutorial_models import EOS, GPT, PAD, LoopLM, LSTMSeq2Seq, RecurrentLM, V, fit, pairs, shifting, text

from unrolled.diagnosis import (
    Batch,
    attention_numbers,
    check_forget_bias,
    check_labels,
    check_overfits_one_batch,
    check_overlap,
    exposure_gap,
    forget_gates,
    gradient_flow,
    jacobian_norms,
)
from unrolled.diagnosis.adapter import Subject
from unrolled.diagnosis.objective import label_shift
from unrolled.diagnosis.overfitting import lowest_loss
from unrolled.diagnosis.recurrence import opened
from unrolled.diagnosis.untouched import untouched


class Bare(nn.Module):
    """A recurrent layer and nothing else that could hide it."""

    def __init__(self, layer: nn.Module, *, is_packed: bool = False) -> None:
        super().__init__()
        self.embed, self.layer, self.is_packed = nn.Embedding(V, layer.input_size), layer, is_packed
        self.out = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), V)

    def forward(self, x):
        given = self.embed(x)
        if self.is_packed:
            given = pack_padded_sequence(given, torch.tensor([4, 7, 1, 5]), batch_first=True, enforce_sorted=False)
        output, state = self.layer(given)
        if self.is_packed:
            output = pad_packed_sequence(output, batch_first=True)[0]
        last = state[0] if isinstance(state, tuple) else state
        return self.out(output) + last.sum()


def layers() -> list[nn.Module]:
    shape = {"input_size": 5, "hidden_size": 3, "batch_first": True}
    return [
        nn.LSTM(**shape),
        nn.LSTM(**shape, num_layers=2, bidirectional=True),
        nn.GRU(**shape, bidirectional=True),
        nn.GRU(**shape, num_layers=2, bias=False),
        nn.RNN(**shape),
        nn.RNN(**shape, nonlinearity="relu", num_layers=2, bidirectional=True),
    ]


@pytest.mark.parametrize("number", range(len(layers())))
@pytest.mark.parametrize("is_packed", [False, True])
def test_an_opened_layer_returns_what_the_kernel_returns(number: int, is_packed: bool) -> None:
    torch.manual_seed(number)
    model = Bare(layers()[number], is_packed=is_packed).double()
    subject = Subject(model)
    with untouched(model):
        whole = subject.logits(text())
        with opened(subject) as runs:
            stepped = subject.logits(text())
    assert torch.allclose(whole, stepped, atol=1e-12)
    assert len(runs) == model.layer.num_layers * (2 if model.layer.bidirectional else 1)


def test_jacobians_of_an_lstm_are_those_of_the_kernel() -> None:
    torch.manual_seed(0)
    model = Bare(nn.LSTM(5, 3, batch_first=True)).double()
    batch = Batch(text(rows=1, steps=4).inputs)
    embedded = model.embed(batch.inputs).detach()
    h, c = (state.detach() for state in model.layer(embedded[:, :1])[1])

    def rest(h, c):
        return torch.stack(model.layer(embedded[:, 1:], (h, c))[1]).flatten()

    both = torch.cat([part.reshape(6, 3) for part in torch.autograd.functional.jacobian(rest, (h, c))], 1)
    measured = jacobian_norms(model, batch)[0]
    assert np.allclose(measured.singular_values[2], torch.linalg.svdvals(both).numpy(), atol=1e-10)
    assert math.isclose(measured.cell_block[2], float(torch.linalg.matrix_norm(both[3:, 3:], 2)), rel_tol=1e-9)
    assert math.isclose(measured.hidden_norm[2], float(torch.linalg.matrix_norm(both[:3, :3], 2)), rel_tol=1e-9)


def linear_net(recurrent: list[list[float]]) -> Bare:
    """A tanh layer kept at 0, where every slope is 1."""
    layer = nn.RNN(2, 2, batch_first=True)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        layer.weight_hh_l0.copy_(torch.tensor(recurrent))
    return Bare(layer)


def test_spectral_radius_zero_and_yet_growth() -> None:
    """A non-normal matrix: ρ = 0, one step multiplies by 8, two steps give 0."""
    measured = jacobian_norms(linear_net([[0.0, 8.0], [0.0, 0.0]]), text(rows=1, steps=5))[0]
    assert (measured.spectral_radius, measured.sigma_max) == (0.0, 8.0)
    assert measured.hidden_norm.tolist() == [8.0, 0.0, 0.0, 0.0, 0.0]
    assert measured.bound.tolist() == [8.0, 64.0, 512.0, 4096.0, 32768.0]
    assert measured.horizon == 1


def test_the_bound_holds_for_a_trained_net() -> None:
    torch.manual_seed(0)
    model = fit(RecurrentLM("RNN", layers=1), text(), steps=40)
    measured = jacobian_norms(model, text())[0]
    assert (measured.hidden_norm <= measured.bound * (1 + 1e-6)).all()
    assert measured.hidden_norm[0] > 0


@pytest.mark.parametrize(("ih", "hh", "gate"), [(1, 0, 0.731059), (1, 1, 0.880797), (0, 0, 0.5)])
def test_forget_gate_opens_by_the_sum_of_both_biases(ih: float, hh: float, gate: float) -> None:
    model = Bare(nn.LSTM(5, 3, batch_first=True))
    with torch.no_grad():
        for weight in model.layer.parameters():
            weight.zero_()
        model.layer.bias_ih_l0[3:6], model.layer.bias_hh_l0[3:6] = ih, hh
    measured = forget_gates(model, text())[0]
    assert measured.bias == ih + hh
    assert np.allclose(measured.values, gate, atol=1e-6)
    assert measured.values.shape == (4 * 7, 3)
    kept = jacobian_norms(model, text(steps=20))[0]
    assert np.allclose(kept.forget_product[-1], gate**20, rtol=1e-3)
    assert bool(check_forget_bias(model)) == (ih == hh == 1)


def test_gradient_with_respect_to_states_is_that_of_the_chain_rule() -> None:
    """∂L/∂s_t = direct part + J_(t+1)ᵀ ∂L/∂s_(t+1): a perturbed state moves the loss by as much."""
    torch.manual_seed(0)
    model, batch = LoopLM().double(), text(rows=2, steps=4)
    norms = gradient_flow(model, batch).states["cell"]
    state, steps = None, []
    for t in range(4):
        state = model.cell(model.embed(batch.inputs[:, t]), state)
        steps.append(torch.cat(state, 1).detach().requires_grad_())
        state = tuple(steps[-1].chunk(2, 1))
    for t in range(4):
        loss, state = torch.zeros(()), tuple(steps[t].chunk(2, 1))
        for later in range(t, 4):
            if later > t:
                state = model.cell(model.embed(batch.inputs[:, later]), state)
            loss = loss + nn.functional.cross_entropy(model.out(state[0]), batch.labels[:, later], reduction="sum") / 8
        assert math.isclose(norms[t], float(torch.autograd.grad(loss, steps[t])[0].norm()), rel_tol=1e-9)


def test_gradient_of_the_last_label_reaches_back_to_inputs() -> None:
    torch.manual_seed(0)
    flow = gradient_flow(GPT(), text())
    assert flow.inputs.shape == (7,)
    assert (flow.inputs > 0).all()
    assert set(flow.weights) == {name for name, _ in GPT().named_parameters()}
    assert flow.findings == ()


def test_the_label_that_does_not_count_is_ignored_in_the_last_step_too() -> None:
    torch.manual_seed(0)
    given = pairs()
    flow = gradient_flow(LSTMSeq2Seq(), given)
    other = Batch(
        given.inputs, given.labels.masked_fill(given.labels == PAD, 99), given.source, pad=PAD, ignore_index=99
    )
    torch.manual_seed(0)
    assert np.array_equal(gradient_flow(LSTMSeq2Seq(), other).inputs, flow.inputs)


def test_attention_numbers_of_uniform_attention() -> None:
    model = GPT(layers=1)
    nn.init.zeros_(model.blocks[0].attn.c_attn.weight)
    nn.init.zeros_(model.blocks[0].attn.c_attn.bias)
    measured = attention_numbers(model, text(steps=5))[0]
    assert (measured.module, measured.head_dim) == ("blocks.0.attn", 8)
    assert math.isclose(measured.factor, 1 / math.sqrt(8))
    assert np.allclose(measured.relative_entropy, 1.0)
    assert np.allclose(measured.entropy, sum(math.log(n) for n in range(1, 6)) / 5)
    assert np.allclose(measured.jacobian_trace, sum(1 - 1 / n for n in range(2, 6)) / 4)
    assert measured.score_variance == 0.0


@pytest.mark.parametrize(("fault", "factor"), [("", 64**-0.5), ("no scale", 1.0), ("scale by width", 256**-0.5)])
def test_variance_of_scores_grows_with_head_dim_unless_scaled(fault: str, factor: float) -> None:
    """Var(q·k) = K for independent entries of unit variance."""
    torch.manual_seed(0)
    model = GPT(d=256, heads=4, layers=1, fault=fault)
    nn.init.normal_(model.blocks[0].attn.c_attn.weight, std=1 / 16)
    nn.init.normal_(model.wte.weight)
    measured = attention_numbers(model, text(rows=8, steps=20))[0]
    assert math.isclose(measured.factor, factor, rel_tol=1e-9)
    assert 0.7 < measured.score_variance / (64 * factor**2) < 1.3


def test_lowest_loss_is_the_entropy_of_what_cannot_be_told_apart() -> None:
    same = Batch(torch.tensor([[1, 5], [1, 5]]), torch.tensor([[5, 6], [5, 7]]))
    assert math.isclose(lowest_loss(same), 2 * math.log(2) / 4)
    other = Batch(same.inputs, same.labels, source=torch.tensor([[3], [4]]))
    assert lowest_loss(other) == 0.0


@pytest.mark.parametrize("constant", [0, 6])
def test_steps_whose_logits_no_weight_moves(constant: int) -> None:
    """Zeros for the start symbol are in no tutorial's loss; zeros anywhere else are a fault."""

    class Zeros(RecurrentLM):
        def forward(self, input):  # noqa: A002
            logits = super().forward(input)[0]
            return torch.cat([logits[:, :constant], torch.zeros(len(input), 1, V), logits[:, constant:-1]], 1)

    torch.manual_seed(0)
    labels = torch.cat([text().inputs[:, :1], text().labels[:, :-1]], 1) if constant == 0 else text().labels
    found = check_overfits_one_batch(Zeros(), Batch(text().inputs, labels), steps=120, learning_rates=(1e-2,))
    assert [(one.name, one.where.step) for one in found] == ([] if constant == 0 else [("cannot_overfit", 6)])
    assert all(one.measured.endswith("the logits at step 6 depend on no weight") for one in found)


def test_a_model_that_no_weight_moves_cannot_learn() -> None:
    class Constant(RecurrentLM):
        def forward(self, input):  # noqa: A002
            return torch.zeros(*input.shape, V)

    (found,) = check_overfits_one_batch(Constant(), text())
    assert (found.name, found.where.step) == ("cannot_overfit", 0)


@pytest.mark.parametrize("shift", [-1, 0, 1, 2, 3])
def test_label_shift(shift: int) -> None:
    tokens = torch.randint(3, V, (3, 20), generator=torch.Generator().manual_seed(0))
    assert label_shift(Batch(tokens[:, 4:12], tokens[:, 4 + shift : 12 + shift])) == shift


def test_labels_that_are_something_else_have_no_shift() -> None:
    assert label_shift(Batch(text().inputs, text(seed=1).labels)) is None
    assert check_labels(RecurrentLM(), Batch(text().inputs, text(seed=1).labels)) == []


def test_right_labels_of_ragged_rows() -> None:
    """[S,a,b,c] and [S,a,E,P] with labels [a,b,c,E] and [a,E,P,P] are right: six labels."""
    batch = Batch(torch.tensor([[1, 5, 6, 7], [1, 5, 2, 0]]), torch.tensor([[5, 6, 7, 2], [5, 2, 0, 0]]), pad=0)
    torch.manual_seed(0)
    assert int((batch.labels != batch.ignored).sum()) == 6
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    assert check_labels(RecurrentLM(), batch, loss=criterion) == []
    total = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
    assert check_labels(RecurrentLM(), batch, loss=total) == []
    assert [one.name for one in check_labels(RecurrentLM(), batch, loss=nn.CrossEntropyLoss())] == ["pads_counted"]


def test_a_loss_may_shift_labels_that_are_the_inputs() -> None:
    """As in libraries whose models take `labels=input_ids`."""
    torch.manual_seed(0)
    batch = Batch(text().inputs, text().inputs)
    assert check_labels(RecurrentLM(), batch, loss=shifting) == []
    found = check_labels(RecurrentLM(), text(), loss=shifting)
    assert [one.name for one in found] == ["labels_shifted"]
    assert "label t is input t+2, counting the 1 by which the loss shifts them" in found[0].measured


def test_losses_that_are_right_in_other_ways() -> None:
    class Normalised(RecurrentLM):
        def forward(self, input, hidden=None):  # noqa: A002
            logits, state = super().forward(input, hidden)
            return logits.log_softmax(-1), state

    torch.manual_seed(0)
    assert check_labels(Normalised(), text(), loss=nn.NLLLoss()) == []
    for loss in (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(weight=torch.linspace(0.1, 2, V))):
        assert check_labels(RecurrentLM(), text(), loss=loss) == []

    def focal(logits, labels):
        log_probs = logits.log_softmax(-1).gather(-1, labels[..., None])
        return -((1 - log_probs.exp()) ** 2 * log_probs).mean()

    assert check_labels(RecurrentLM(), text(), loss=focal) == []

    def one_against_all(logits, labels):
        return nn.functional.binary_cross_entropy_with_logits(logits, nn.functional.one_hot(labels, V).float())

    def with_size_penalty(logits, labels):
        return nn.functional.cross_entropy(logits.mT, labels) + 0.5 * logits.logsumexp(-1).square().sum()

    def without_first_step(logits, labels):
        return nn.functional.cross_entropy(logits[:, 1:].mT, labels[:, 1:])

    def hardest(logits, labels):
        return nn.functional.cross_entropy(logits.mT, labels, reduction="none").flatten().topk(5).values.mean()

    def sampled(logits, labels):
        return nn.functional.cross_entropy((logits + torch.randn(V).gt(0.5) * -9.0).mT, labels)

    def counted(logits, labels):
        return logits.argmax(-1).ne(labels).float().mean()

    for loss in (one_against_all, with_size_penalty, without_first_step, hardest, sampled, counted):
        assert check_labels(RecurrentLM(), text(), loss=loss) == [], loss.__name__


def test_weights_of_classes_do_not_hide_a_shift_nor_make_one() -> None:
    torch.manual_seed(0)
    weight = torch.linspace(0.1, 2, V)

    def weighted(logits, labels):
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), weight)

    assert check_labels(RecurrentLM(), Batch(text().inputs, text().inputs), loss=weighted) == []
    assert [one.name for one in check_labels(RecurrentLM(), text(), loss=weighted)] == ["labels_shifted"]


def test_padding_that_nobody_named_is_no_symbol_left_out() -> None:
    tokens = text().inputs.clone()
    tokens[:2, 4:] = PAD
    batch = Batch(tokens[:, :-1], tokens[:, 1:])
    torch.manual_seed(0)
    assert check_labels(RecurrentLM(), batch, loss=nn.CrossEntropyLoss(ignore_index=PAD)) == []
    none = Batch(batch.inputs, torch.full_like(batch.inputs, -100))
    assert check_labels(RecurrentLM(), none, loss=nn.CrossEntropyLoss()) == []


def test_few_labels_of_two_kinds_and_memories_are_no_shift() -> None:
    inputs = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0]])
    labels = torch.full_like(inputs, -100)
    labels[:, -1] = inputs[:, -1]
    assert label_shift(Batch(inputs, labels)) is None
    tokens = torch.randint(3, V, (3, 20), generator=torch.Generator().manual_seed(0))
    assert label_shift(Batch(tokens[:, 2:], tokens[:, :-2])) is None  # an echo


def test_overlap_counts_pairs_and_sources() -> None:
    train = [("a", "x"), ("b", "y"), ("b", "y"), ("c", "z")]
    valid = [("d", "w"), ("a", "x"), ("b", "y"), ("c", "other")]
    (found,) = check_overlap(train, valid)
    assert found.measured == "2 of 4 validation pairs and 3 of 4 sources occur in the training data"
    assert found.where.line == 2
    assert check_overlap(train, [("d", "w")]) == []


def test_overlap_takes_columns_with_line_numbers() -> None:
    train = SimpleNamespace(sources=["a"], targets=["x"])
    valid = SimpleNamespace(sources=["q", "a"], targets=["x", "x"], lines=[4, 9])
    assert check_overlap(train, valid)[0].where.line == 9
    assert check_overlap([torch.tensor([1, 2])], [torch.tensor([1, 2])])


def test_exposure_gap_of_a_model_that_copies_its_input() -> None:
    """Right after the true prefix, lost after its own: the next label stands in the input."""
    table = torch.eye(V).roll(1, 1) * 9  # after symbol k comes k + 1, whatever the source says
    inputs = torch.tensor([[1, 5, 6, 7]])
    labels = torch.tensor([[5, 6, 7, EOS]])
    measured = exposure_gap(lambda source, inputs: table[inputs], (torch.tensor([[4, 4]]), inputs, labels))
    assert measured.true.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert measured.own.tolist() == [1.0, 1.0, 1.0, 1.0]
    assert measured.gap.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert measured.findings == ()  # half is not more than half
    assert exposure_gap(GPT(), text()) is None


def test_exposure_gap_after_training_with_a_future_leak() -> None:
    torch.manual_seed(0)

    class Peeking(LSTMSeq2Seq):
        def forward(self, src, tgt, src_lengths):
            ahead = torch.cat([tgt[:, 1:], torch.full_like(tgt[:, :1], EOS)], 1)
            return 9.0 * nn.functional.one_hot(ahead, V) + 0 * super().forward(src, tgt, src_lengths)

    batch = pairs()
    measured = exposure_gap(Peeking(), batch)
    assert [one.name for one in measured.findings] == ["exposure_gap"]


@pytest.mark.parametrize("is_right", [False, True])
def test_a_reverse_direction_that_is_read_after_one_step(is_right: bool) -> None:
    """The last output of the reverse direction has seen one symbol; its last state has seen all."""

    class Summary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(V, 8), nn.Linear(16, 2)
            self.rnn = nn.LSTM(8, 8, batch_first=True, bidirectional=True)

        def forward(self, x):
            y, (h, _) = self.rnn(self.embed(x))
            return self.out(torch.cat([h[0], h[1]], -1) if is_right else y[:, -1])[:, None]

    torch.manual_seed(0)
    findings = gradient_flow(Summary(), text().inputs).findings
    assert [one.name for one in findings] == ([] if is_right else ["no_gradient"])
    assert is_right or findings[0].where.module == "rnn.weight_hh_l0_reverse"
