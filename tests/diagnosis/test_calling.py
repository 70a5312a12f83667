"""Batches in every form, signatures guessed, findings printed."""

from __future__ import annotations

import json
import re
from collections import UserDict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from tutorial_models import (
    GPT,
    PAD,
    BahdanauSeq2Seq,
    FixedVectorSeq2Seq,
    LSTMSeq2Seq,
    RecurrentLM,
    TransformerSeq2Seq,
    V,
    pairs,
    text,
)

from unrolled.commands.doctor import _report
from unrolled.diagnosis import FAULTS, Adapter, Batch, Finding, Where, check_causal, check_stepwise, examine
from unrolled.diagnosis.adapter import Subject
from unrolled.diagnosis.findings import CAUSES, worst_first
from unrolled.diagnosis.overfitting import lowest_loss
from unrolled.errors import ConfigError, ShapeError

GUIDE = Path(__file__).parents[2] / "docs" / "diagnosis.md"


# --- batches ---------------------------------------------------------------------------------------------------------


def test_batches_in_every_form() -> None:
    whole = pairs()
    assert Batch.of(whole) is whole
    assert Batch.of(whole.inputs).labels is None
    assert Batch.of((whole.inputs, whole.labels)).labels is whole.labels
    assert Batch.of((whole.source, whole.inputs, whole.labels)).source is whole.source
    assert Batch.of({"inputs": whole.inputs, "pad": 0}).pad == 0


def test_mappings_by_their_usual_names() -> None:
    whole = pairs()
    real = whole.inputs != PAD
    alone = Batch.of(UserDict(input_ids=whole.inputs, attention_mask=real, labels=whole.labels))
    assert alone.inputs is whole.inputs
    assert alone.mask is real
    assert alone.source is None
    both = Batch.of(
        {
            "input_ids": whole.source,
            "attention_mask": whole.source != PAD,
            "decoder_input_ids": whole.inputs,
            "decoder_attention_mask": real,
        }
    )
    assert both.source is whole.source
    assert torch.equal(both.source_mask, whole.source != PAD)
    assert both.inputs is whole.inputs
    assert both.mask is real


def test_arrays_of_a_text_batch_become_tensors() -> None:
    arrays = {"inputs": [[1, 5]], "labels": [[5, 2]], "source": [[4, 2]], "source_mask": [[True, True]]}
    batch = Batch.of(SimpleNamespace(**{name: np.array(value) for name, value in arrays.items()}))
    assert batch.pad == 0
    assert batch.labels.tolist() == [[5, 2]]
    assert batch.real_source.all()


def test_a_label_of_minus_100_never_counts() -> None:
    whole = pairs()
    filled = replace(whole, labels=whole.labels.masked_fill(whole.labels == PAD, -100))
    assert (filled.ignored, whole.ignored, text().ignored) == (-100, PAD, -100)
    assert filled.rows(torch.tensor([0])).ignored == filled.columns(0, 1).ignored == -100  # without any such label
    torch.manual_seed(0)
    found = examine(LSTMSeq2Seq(), filled, overfit=False)
    assert not found, str(found)
    assert "gradient_flow" in found.checked


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2, 3, 4), r"a batch is \(inputs, labels\) or \(source, inputs, labels\), got 4 parts"),
        ({"tokens": torch.zeros(2, 3)}, "a batch needs 'inputs' and knows inputs, labels, source.*got tokens"),
        ({"inputs": torch.zeros(2, 3), "y": torch.zeros(2, 3)}, "knows .* input_ids, .* got inputs, y"),
        ((torch.zeros(2, 3), torch.zeros(2, 4)), r"labels must be \(2, 3\) like what it belongs to, got \(2, 4\)"),
        ((torch.zeros(3, 3), torch.zeros(2, 3), torch.zeros(2, 3)), "one B"),
        (torch.zeros(3), r"inputs must be \(B, T\)"),
    ],
)
def test_batches_that_cannot_be(value, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Batch.of(value)


def test_altered_tokens_differ_exactly_where_asked() -> None:
    batch = pairs()
    where = torch.rand(batch.inputs.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    other = batch.with_inputs_altered(where)
    assert ((other.inputs != batch.inputs) == (where & batch.real_inputs)).all()
    assert (other.inputs[batch.inputs != 0] != 0).all()
    single = Batch(torch.full((2, 3), 7)).with_inputs_altered(torch.ones(2, 3, dtype=torch.bool))
    assert (single.inputs == 6).all()


# --- signatures ------------------------------------------------------------------------------------------------------


def logits_of(model, batch, **options) -> torch.Tensor:
    subject = Subject(model, Adapter(**options))
    with subject.mode(), torch.no_grad():
        return subject.logits(batch)


def test_what_models_return_is_found() -> None:
    table, batch = torch.randn(V, V), text()
    expected = table[batch.inputs]
    shaped = {
        "tensor": lambda x: table[x],
        "tuple": lambda x: (table[x], None),
        "mapping": lambda x: {"loss": 0, "logits": table[x]},
        "object": lambda x: SimpleNamespace(logits=table[x]),
        "classes second": lambda x: table[x].transpose(1, 2),
        "flat": lambda x: table[x].flatten(0, 1),
    }
    for name, model in shaped.items():
        assert torch.equal(logits_of(model, batch), expected), name


def test_masks_lengths_and_names_are_passed_as_they_are_called() -> None:
    batch, seen = pairs(), {}

    def model(src, trg, src_mask, src_lengths, src_key_padding_mask=None, teacher_forcing_ratio=0.5, other=3):
        seen.update(locals())
        return torch.zeros(*trg.shape, V)

    logits_of(model, batch)
    assert seen["src"] is batch.source
    assert seen["trg"] is batch.inputs
    assert torch.equal(seen["src_mask"], batch.source != 0)
    assert torch.equal(seen["src_key_padding_mask"], batch.source == 0)
    assert seen["src_lengths"].tolist() == (batch.source != 0).sum(1).tolist()
    assert (seen["teacher_forcing_ratio"], seen["other"]) == (1.0, 3)


def test_targets_of_a_language_model_are_only_asked_for_its_logits() -> None:
    assert logits_of(lambda idx, targets=None: torch.zeros(*targets.shape, V), text()).shape == (
        *text().inputs.shape,
        V,
    )


def test_a_reversed_signature_is_told_by_its_names() -> None:
    batch = pairs()
    order = []
    logits_of(lambda tgt, src: order.extend([tgt, src]) or torch.zeros(*tgt.shape, V), batch)
    assert order[0] is batch.inputs
    assert order[1] is batch.source


def test_a_parameter_that_cannot_be_told_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot tell how to call function.forward\(x, graph\): what is 'graph'"):
        logits_of(lambda x, graph: x, text())


def test_logits_of_a_wrong_shape_are_explained() -> None:
    with pytest.raises(ShapeError, match=r"logits of <lambda> must be \(B, T, V\) with B = 4 and T = 7, got \(7, 4"):
        logits_of(lambda x: torch.zeros(7, 4, V), text())


def test_time_first_models_see_time_first_tokens() -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.out = nn.Embedding(V, 8), nn.LSTM(8, 8), nn.Linear(8, V)

        def forward(self, x, hidden=None):
            output, hidden = self.rnn(self.embed(x), hidden)
            return self.out(output), hidden

    torch.manual_seed(0)
    assert not examine(TimeFirst(), text(), adapter=Adapter(time_first=True), overfit=False)
    assert "batch_leak" in examine(TimeFirst(), text(), overfit=False).names


def test_an_error_of_the_model_comes_with_a_hint() -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.out = nn.Embedding(V, 8), nn.GRU(8, 8), nn.Linear(8, V)

        def init_hidden(self, rows):
            return torch.zeros(1, rows, 8)

        def forward(self, x, hidden):
            return self.out(self.rnn(self.embed(x), hidden)[0])

    with pytest.raises(RuntimeError, match="hidden") as caught:  # the model's own
        examine(TimeFirst(), text())
    (hint,) = caught.value.__notes__
    assert hint.startswith("raised inside TimeFirst, which was given x, hidden, tokens as (B, T) with B = 4 and T = 7")
    assert "Adapter(time_first=True)" in hint
    assert not examine(TimeFirst(), text(), adapter=Adapter(time_first=True), overfit=False)


def test_a_step_of_ones_own() -> None:
    """A cache that the caller manages; the fault is in the caller's code."""
    torch.manual_seed(0)
    model = GPT()

    def step(model, tokens, state, batch):
        return model(tokens, state)

    def forgetful(model, tokens, state, batch):
        logits, state = model(tokens, state)
        return logits, [(k[:, :, 1:], v[:, :, 1:]) for k, v in state]

    forward = Adapter(forward=lambda model, batch: model(batch.inputs)[0], step=step)
    assert check_stepwise(model, text(), adapter=forward) == []
    (found,) = check_stepwise(model, text(), adapter=Adapter(step=forgetful))
    assert (found.name, found.where.step) == ("stepwise_mismatch", 1)


@pytest.mark.parametrize("model", [BahdanauSeq2Seq, LSTMSeq2Seq, TransformerSeq2Seq])
def test_tutorial_signatures_need_no_adapter(model) -> None:
    assert logits_of(model().eval(), pairs()).shape == (5, 6, V)


def test_real_vectors_as_inputs() -> None:
    torch.manual_seed(0)
    frames = Batch(torch.randn(3, 9, 6))
    layer = nn.LSTM(6, 5, batch_first=True)
    assert check_causal(lambda x: layer(x)[0], frames) == []
    both = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
    assert [one.name for one in check_causal(lambda x: both(x)[0], frames)] == ["future_leak"]


# --- findings --------------------------------------------------------------------------------------------------------


def test_a_finding_stands_in_one_line_and_in_json() -> None:
    found = check_causal(GPT(fault="no mask"), text())[0]
    line = found.line()
    assert "\n" not in line
    assert line.startswith("broken: future_leak at blocks.0.attn, blocks.1.attn, step 0: logits at step 0 depend on")
    assert "right: logits at step t" in line
    assert "to do: mask attention" in line
    assert json.loads(json.dumps(found.to_json()))["where"] == {
        "module": "blocks.0.attn, blocks.1.attn",
        "step": 0,
        "line": None,
    }


def test_worst_first() -> None:
    order = worst_first(Finding(name, FAULTS[name].severity, "", "", Where(), "") for name in sorted(FAULTS))
    severities = [one.severity for one in order]
    assert severities == sorted(severities)
    assert order[0].name == "future_leak"


def test_an_examination_is_a_sequence_of_findings() -> None:
    healthy = examine(RecurrentLM(), text(), overfit=False)
    assert (len(healthy), bool(healthy), list(healthy)) == (0, False, [])
    assert str(healthy).startswith("nothing found; checked: check_finite, check_attention, check_eval_mode")
    assert healthy.skipped["check_overfits_one_batch"] == "not asked for"
    broken = examine(RecurrentLM(fault="time first"), text(), overfit=False)
    assert broken[0].name in broken.names
    assert json.dumps(broken.to_json())


def test_a_check_that_an_error_ended_is_named_apart() -> None:
    class Fragile(RecurrentLM):
        def forward(self, input, hidden=None):  # noqa: A002
            if hidden is not None:
                raise KeyError("no state here")
            return super().forward(input)

    torch.manual_seed(0)
    found = examine(Fragile(), text(), overfit=False)
    assert found.failed.keys() == {"check_stepwise", "check_state_handling"}
    assert found.failed.keys().isdisjoint({*found.skipped, *found.checked})
    assert str(found).splitlines()[1:] == [
        f"could not be checked: {name} (KeyError: 'no state here')" for name in found.failed
    ]
    assert found.to_json()["failed"] == found.failed
    assert "could not be checked: stepwise (KeyError: 'no state here')" in list(_report(found))


def test_what_can_follow_from_another_finding_is_marked_and_last() -> None:
    torch.manual_seed(0)
    found = examine(FixedVectorSeq2Seq("state not passed"), pairs(), overfit=False)
    assert [(one.name, one.cause) for one in found] == [("source_ignored", None), ("no_gradient", "source_ignored")]
    assert found[1].line().startswith("broken: no_gradient at src_embed (can follow from source_ignored): the gradient")
    assert any(line.endswith("(can follow from source ignored)") for line in _report(found))
    alone = examine(LSTMSeq2Seq(fault="encoder not trained"), pairs(), overfit=False)
    assert [(one.name, one.cause) for one in alone] == [("no_gradient", None)]


def test_causes_are_findings_too() -> None:
    assert CAUSES.keys() <= FAULTS.keys()
    assert {cause for causes in CAUSES.values() for cause in causes} <= FAULTS.keys()


def test_the_guide_lists_every_name_and_no_other() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    of_modules = dict(re.findall(r"^\| `([a-z_]+)` \| (broken|suspect) \|", guide, re.MULTILINE))
    of_runs = set(re.findall(r"^\| [^|]+ \| `([a-z_]+)` \|", guide, re.MULTILINE))
    assert of_modules == {name: FAULTS[name].severity for name in of_modules}
    assert of_modules.keys() | of_runs == FAULTS.keys()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
def test_the_guides_examples_run(block: str) -> None:
    torch.manual_seed(0)
    exec(compile(block, "docs/diagnosis.md", "exec"), {})


def test_a_state_in_two_parameters_is_carried_whole() -> None:
    class Apart(RecurrentLM):
        def forward(self, x, h=None, c=None):
            state = None if h is None or c is None else (h, c)
            logits, (h, c) = super().forward(x, state)
            return logits, h, c

    torch.manual_seed(0)
    assert check_stepwise(Apart(), text()) == []

    class HalfKept(Apart):
        def forward(self, x, h=None, c=None):
            return super().forward(x, h, None if c is None else torch.zeros_like(c))

    assert [one.name for one in check_stepwise(HalfKept(), text())] == ["stepwise_mismatch"]


def test_a_state_in_two_required_parameters_begins_with_both() -> None:
    class Required(RecurrentLM):
        def init_hidden(self, size):
            return torch.zeros(2, size, 24), torch.ones(2, size, 24)

        def forward(self, x, h, c):
            assert bool((c[0] != h[0]).any())
            logits, (h, c) = super().forward(x, (h, c))
            return logits, h, c

    torch.manual_seed(0)
    assert check_stepwise(Required(), text()) == []


def test_a_condition_beside_the_state_is_no_part_of_it() -> None:
    class Conditioned(RecurrentLM):
        def forward(self, x, hidden=None, c=None):
            assert c is None
            return super().forward(x, hidden)

    torch.manual_seed(0)
    assert check_stepwise(Conditioned(), text()) == []


def test_the_parameter_that_nobody_knows_is_asked_for() -> None:
    def annotated(src, tgt, src_mask, tgt_mask):
        raise AssertionError

    with pytest.raises(ConfigError, match="what is 'tgt_mask'"):
        check_causal(annotated, pairs())


class Classifier(nn.Module):
    """One label a sequence, from the last states of both directions."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.embed, self.out = factor, nn.Embedding(V, 16), nn.Linear(24, 3)
        self.rnn = nn.LSTM(16, 12, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.rnn(packed)
        return self.factor * self.out(torch.cat([h[0], h[1]], 1))


def test_one_label_a_sequence() -> None:
    torch.manual_seed(0)
    inputs = torch.randint(3, V, (6, 8))
    inputs[1, 5:] = inputs[3, 4:] = PAD
    batch = Batch(inputs, torch.tensor([0, 1, 2, 0, 1, 2]), pad=PAD)  # class 0 is no padding
    tagger = Adapter(is_causal=False)
    healthy = examine(Classifier(), batch, adapter=tagger, loss=nn.CrossEntropyLoss(), overfit=True)
    assert healthy.names == set()
    assert {"check_labels", "check_first_loss", "check_overfits_one_batch", "gradient_flow"} <= set(healthy.checked)
    assert examine(Classifier(100), batch, adapter=tagger).names >= {"first_loss"}
    raw = examine(Classifier(), batch, adapter=tagger, loss=nn.NLLLoss())
    assert "logits_not_normalised" in raw.names
    one_logit = nn.Sequential(nn.Embedding(V, 8), nn.Flatten(), nn.Linear(64, 1))
    assert examine(one_logit, Batch(inputs, torch.tensor([0, 1, 1, 0, 1, 0])), adapter=tagger).names == set()
    same = Batch(inputs[[0, 0]], torch.tensor([0, 1]), pad=PAD)
    assert lowest_loss(same) == pytest.approx(np.log(2))
    assert lowest_loss(batch) == 0.0
    with pytest.raises(ShapeError, match=r"labels must be \(6, 8\)"):
        Batch(inputs, torch.zeros(6, 3, dtype=torch.long))
