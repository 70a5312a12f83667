"""Faults that people make, planted in tutorial models: each must be found under its name, and in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from tutorial_models import (
    BOS,
    EOS,
    GPT,
    PAD,
    ConvLM,
    DeepTagger,
    FixedVectorSeq2Seq,
    KeptStateLM,
    LoopLM,
    LSTMSeq2Seq,
    RecurrentLM,
    TransformerSeq2Seq,
    V,
    pairs,
    shifting,
    text,
)

from unrolled.diagnosis import FAULTS, examine


class Planted(NamedTuple):
    """A faulty model: how to build it, what must be found, and (part of) the place."""

    model: object
    batch: object
    name: str
    module: str = ""
    options: dict = {}  # noqa: RUF012


def changed(model: nn.Module, change) -> nn.Module:
    with torch.no_grad():
        change(model)
    return model


def set_forget_bias(lstm, ih: float, hh: float, *, quarter: int = 1, cell: str = "_l0") -> None:
    H = lstm.hidden_size
    for kind, value in (("ih", ih), ("hh", hh)):
        getattr(lstm, f"bias_{kind}{cell}")[quarter * H : (quarter + 1) * H] = value


def scaled(part: nn.Module, factor: float) -> None:
    for weight in part.parameters():
        weight *= factor


FAULTY = {
    # the future
    "gpt without mask": lambda: Planted(GPT(fault="no mask"), text(), "future_leak", "blocks.0.attn"),
    "gpt mask one too far": lambda: Planted(GPT(fault="mask shifted"), text(), "future_leak", "blocks.0.attn"),
    "gpt without mask in training": lambda: Planted(
        GPT(fault="no mask in training"), text(), "future_leak", "blocks.0.attn"
    ),
    "gpt norm over time": lambda: Planted(GPT(fault="norm over time"), text(), "future_leak", "GPT"),
    "convolution centred": lambda: Planted(ConvLM("centred"), text(), "future_leak", "convs.0"),
    "loop fed the next token": lambda: Planted(LoopLM("next token fed"), text(), "future_leak", "LoopLM"),
    "nn.Transformer without mask": lambda: Planted(
        TransformerSeq2Seq(fault="no mask"), pairs(), "future_leak", "transformer.decoder.layers.0.self_attn"
    ),
    "nn.Transformer mask one too far": lambda: Planted(
        TransformerSeq2Seq(fault="mask shifted"), pairs(), "future_leak", "transformer.decoder.layers.0.self_attn"
    ),
    # padding
    "encoder not packed": lambda: Planted(LSTMSeq2Seq(fault="not packed"), pairs(), "padding_leak", "encoder"),
    "lstm attention not masked": lambda: Planted(
        LSTMSeq2Seq(fault="attention not masked"), pairs(), "padding_leak", "LSTMSeq2Seq"
    ),
    "last column as summary": lambda: Planted(
        FixedVectorSeq2Seq("last column"), pairs(), "padding_leak", "FixedVectorSeq2Seq"
    ),
    "mean over padding": lambda: Planted(
        FixedVectorSeq2Seq("pooled over padding"), pairs(), "padding_leak", "FixedVectorSeq2Seq"
    ),
    "nn.Transformer memory not masked": lambda: Planted(
        TransformerSeq2Seq(fault="memory not masked"), pairs(), "padding_leak", "multihead_attn"
    ),
    "nn.Transformer encoder not masked": lambda: Planted(
        TransformerSeq2Seq(fault="encoder not masked"), pairs(), "padding_leak", "encoder.layers.0.self_attn"
    ),
    "nn.Transformer padding inverted": lambda: Planted(
        TransformerSeq2Seq(fault="padding inverted"), pairs(), "padding_leak", "multihead_attn"
    ),
    # the batch
    "lstm time first": lambda: Planted(RecurrentLM(fault="time first"), text(), "batch_leak", "rnn"),
    "logits reshaped": lambda: Planted(RecurrentLM(fault="reshape"), text(), "batch_leak", "RecurrentLM"),
    "view in place of a transpose": lambda: Planted(ViewedLM(), text(6, 12), "batch_leak", "ViewedLM"),
    # steps and state
    "cache positions from 0": lambda: Planted(GPT(fault="positions from 0"), text(), "stepwise_mismatch", "GPT"),
    "lstm state dropped": lambda: Planted(RecurrentLM(fault="state dropped"), text(), "state_lost"),
    "lstm cell dropped": lambda: Planted(RecurrentLM(fault="cell dropped"), text(), "state_lost"),
    "lstm state not updated": lambda: Planted(
        RecurrentLM(fault="state not updated"), text(), "stepwise_mismatch", "rnn"
    ),
    "loop state reset": lambda: Planted(LoopLM("state reset"), text(), "state_lost"),
    "state kept on the module": lambda: Planted(KeptStateLM("kept detached"), text(), "state_carried", "lstm"),
    "state kept with its graph": lambda: Planted(KeptStateLM("kept"), text(), "state_not_detached", "KeptStateLM"),
    "state passed on attached": lambda: Planted(
        RecurrentLM(), text(), "state_not_detached", "RecurrentLM", {"carry": lambda state: state}
    ),
    # attention
    "softmax over batch": lambda: Planted(
        LSTMSeq2Seq(fault="softmax over batch"), pairs(), "attention_axis", "LSTMSeq2Seq"
    ),
    "softmax over decoder steps": lambda: Planted(
        LSTMSeq2Seq(fault="softmax over steps"), pairs(), "attention_axis", "LSTMSeq2Seq"
    ),
    "softmax over queries": lambda: Planted(
        GPT(fault="softmax over queries"), text(), "attention_axis", "blocks.0.attn"
    ),
    "softmax over heads": lambda: Planted(GPT(fault="softmax over heads"), text(), "attention_axis", "blocks.0.attn"),
    "no scale": lambda: Planted(GPT(fault="no scale"), text(), "attention_scale", "blocks.0.attn"),
    "scale by model width": lambda: Planted(GPT(fault="scale by width"), text(), "attention_scale", "blocks.1.attn"),
    "scaled twice": lambda: Planted(GPT(fault="scale twice"), text(), "attention_scale", "blocks.0.attn"),
    "diagonal lost": lambda: Planted(GPT(fault="diagonal lost"), text(), "non_finite", "blocks.0.attn"),
    "fused diagonal lost": lambda: Planted(GPT(fault="fused diagonal lost"), text(), "attention_mask", "blocks.0.attn"),
    "mask inverted": lambda: Planted(GPT(fault="mask inverted"), text(), "future_leak", "blocks.0.attn"),
    "nn.Transformer mask inverted": lambda: Planted(
        TransformerSeq2Seq(fault="mask inverted"), pairs(), "future_leak", "self_attn"
    ),
    "softmax saturated": lambda: Planted(
        changed(GPT(), lambda m: scaled(m.blocks[0].attn.c_attn, 100)), text(), "attention_saturated", "blocks.0.attn"
    ),
    # start values
    "forget bias on both vectors": lambda: Planted(
        changed(RecurrentLM(), lambda m: set_forget_bias(m.rnn, 1, 1)), text(), "forget_bias", "rnn.l0"
    ),
    "forget bias in the wrong quarter": lambda: Planted(
        changed(RecurrentLM(), lambda m: set_forget_bias(m.rnn, 1, 0, quarter=0)), text(), "forget_bias", "rnn.l0"
    ),
    "forget gate closed": lambda: Planted(
        changed(LoopLM(), lambda m: set_forget_bias(m.cell, -4, 0, cell="")), text(), "forget_bias", "cell"
    ),
    "forget gate set to 0": lambda: Planted(
        changed(LSTMSeq2Seq(), lambda m: set_forget_bias(m.decoder, 0, 0)), pairs(), "forget_bias", "decoder.l0"
    ),
    "tied embeddings of unit variance": lambda: Planted(GPT(tied=True, fault="unit variance"), text(), "first_loss"),
    "output layer too large": lambda: Planted(
        changed(RecurrentLM(), lambda m: scaled(m.decoder, 30)), text(), "first_loss"
    ),
    # labels and loss
    "labels are the inputs": lambda: Planted(RecurrentLM(), replace(text(), labels=text().inputs), "labels_shifted"),
    "labels two ahead": lambda: Planted(
        GPT(),
        replace(text(), labels=text().labels.roll(-1, 1).index_fill(1, torch.tensor([6]), -100)),
        "labels_shifted",
    ),
    "pads counted by the loss": lambda: Planted(
        LSTMSeq2Seq(), pairs(), "pads_counted", options={"loss": nn.CrossEntropyLoss()}
    ),
    "smoothing pays for padding": lambda: Planted(
        LSTMSeq2Seq(), pairs(), "pads_counted", options={"loss": leaky_smoothing}
    ),
    "loss divided by all positions": lambda: Planted(
        LSTMSeq2Seq(), pairs(), "pads_counted", options={"loss": mean_over_all}
    ),
    "loss shifts labels that are shifted": lambda: Planted(
        RecurrentLM(), text(), "labels_shifted", options={"loss": shifting}
    ),
    "logits flattened time first": lambda: Planted(
        GPT(), text(), "labels_shifted", options={"loss": flattened_time_first}
    ),
    "end of sequence is padding": lambda: Planted(
        LSTMSeq2Seq(), pairs(), "labels_uncounted", options={"loss": without_end}
    ),
    "likelihood of raw logits": lambda: Planted(
        RecurrentLM(), text(), "logits_not_normalised", options={"loss": nn.NLLLoss()}
    ),
    "softmax before cross entropy": lambda: Planted(RecurrentLM(fault="softmax"), text(), "probabilities_not_logits"),
    # evaluation
    "functional dropout": lambda: Planted(
        RecurrentLM(fault="functional dropout"), text(), "dropout_in_eval", "RecurrentLM"
    ),
    "dropout in attention": lambda: Planted(
        GPT(fault="dropout in attention"), text(), "dropout_in_eval", "blocks.0.attn"
    ),
    # gradients
    "recurrent weights too small": lambda: Planted(
        changed(RecurrentLM("RNN"), lambda m: m.rnn.weight_hh_l0.mul_(0.1)), text(), "vanishing_gradient_time", "rnn.l0"
    ),
    "recurrent weights too large": lambda: Planted(
        changed(RecurrentLM("RNN", layers=1), exploding), text(), "exploding_gradient_time", "rnn.l0"
    ),
    "deep sigmoid stack": lambda: Planted(DeepTagger(act=nn.Sigmoid), text(), "vanishing_gradient_depth", "layers.0"),
    "deep stack of large weights": lambda: Planted(
        DeepTagger(act=nn.ReLU, gain=6.0), text(), "exploding_gradient_depth", "layers.0"
    ),
    "encoder detached": lambda: Planted(LSTMSeq2Seq(fault="encoder not trained"), pairs(), "no_gradient", "src_embed"),
    "layers in a plain list": lambda: Planted(ListTagger(), text(), "unregistered_weights", "ListTagger"),
    # units
    "relu never active": lambda: Planted(
        changed(GPT(fault="relu"), lambda m: m.blocks[1].mlp[0].bias.fill_(-10)), text(), "dead_units", "blocks.1.mlp.1"
    ),
    "half the relu dead": lambda: Planted(
        changed(GPT(fault="relu"), lambda m: m.blocks[0].mlp[0].bias[:64].fill_(-50)),
        text(),
        "dead_units",
        "blocks.0.mlp.1",
    ),
    "tanh saturated": lambda: Planted(
        changed(DeepTagger(layers=2), lambda m: scaled(m.layers[0], 100)), text(), "saturated_units", "act"
    ),
    "input gate shut": lambda: Planted(
        changed(RecurrentLM(), lambda m: set_forget_bias(m.rnn, -8, 0, quarter=0)), text(), "saturated_units", "rnn.l0"
    ),
    # values
    "a weight is NaN": lambda: Planted(
        changed(GPT(), lambda m: m.blocks[1].mlp[2].weight[3].fill_(torch.nan)), text(), "non_finite", "blocks.1.mlp.2"
    ),
    "logarithm of 0": lambda: Planted(LogTagger(), text(), "non_finite", "LogTagger"),
    # source
    "source never reaches the decoder": lambda: Planted(
        FixedVectorSeq2Seq("state not passed"), pairs(), "source_ignored"
    ),
    "context thrown away": lambda: Planted(LSTMSeq2Seq(fault="source ignored"), pairs(), "source_ignored"),
    "no positions": lambda: Planted(changed(TransformerSeq2Seq(), lambda m: m.pe.zero_()), pairs(), "order_ignored"),
    # learning
    "weights frozen": lambda: Planted(frozen(RecurrentLM()), text(), "cannot_overfit"),
}


def exploding(model: RecurrentLM) -> None:
    nn.init.orthogonal_(model.rnn.weight_hh_l0)
    model.rnn.weight_hh_l0 *= 3
    for weight in (model.rnn.weight_ih_l0, model.rnn.bias_ih_l0, model.rnn.bias_hh_l0):
        weight *= 1e-3


def frozen(model: RecurrentLM) -> nn.Module:
    for name, weight in model.named_parameters():
        weight.requires_grad_(name == "decoder.bias")
    return model


def leaky_smoothing(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Label smoothing whose uniform part forgets the padding."""
    log_probs = logits.log_softmax(-1)
    real = labels != PAD
    nll = -log_probs.gather(-1, labels[..., None])[..., 0][real].sum()
    return (0.9 * nll - 0.1 * log_probs.mean(-1).sum()) / real.sum()


def mean_over_all(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Pads cost nothing, but the sum is divided by all positions."""
    each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="none")
    return each.mean()


def flattened_time_first(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Logits and labels in two orders."""
    return nn.functional.cross_entropy(logits.transpose(0, 1).flatten(0, 1), labels.flatten())


def without_end(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Pads share the id of the end of a sequence, which is never learnt."""
    labels = labels.masked_fill(labels == PAD, EOS)
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=EOS)


class ListTagger(nn.Module):
    """Layers in a Python list: no optimiser will ever see them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(V, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, V)
        self.layers = [nn.Linear(16, 16) for _ in range(2)]

    def forward(self, x):
        h = self.rnn(self.embed(x))[0]
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return self.out(h)


class ViewedLM(nn.Module):
    """Makes its tokens time-first with `view`, which mixes the rows; the recurrent layer after it is right."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(V, 16), nn.GRU(16, 16), nn.Linear(16, V)

    def forward(self, x):
        B, T = x.shape
        return self.out(self.rnn(self.embed(x).view(T, B, -1))[0]).view(B, T, -1)


class LogTagger(nn.Module):
    """Takes a logarithm of a rectified value."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(V, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, V)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0].relu().log())


@pytest.mark.parametrize("fault", FAULTY)
def test_fault_is_found_under_its_name_and_in_its_place(fault: str) -> None:
    torch.manual_seed(1)
    planted = FAULTY[fault]()
    examination = examine(planted.model, planted.batch, overfit=planted.name == "cannot_overfit", **planted.options)
    found = [one for one in examination if one.name == planted.name]
    assert found, f"expected {planted.name}, got {examination.names or 'nothing'}; {examination.skipped}"
    assert any(planted.module in (one.where.module or "") for one in found), [str(one.where) for one in found]


OF_RUNS = {
    "attention_stands_still",
    "dev_got_worse",
    "learnt_by_heart",
    "loss_stuck",
    "pairs_left_out",
    "steps_skipped",
    "unknown_symbols",
}
"""Faults of a log or of data, which no module shows; they are planted in runs elsewhere."""


def test_there_are_enough_of_them() -> None:
    assert len(FAULTY) >= 60
    assert {FAULTY[fault]().name for fault in FAULTY} == set(FAULTS) - {"overlap", "exposure_gap"} - OF_RUNS


def test_bos_is_the_first_input() -> None:
    assert (pairs().inputs[:, 0] == BOS).all()
