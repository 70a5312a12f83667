"""Taggers and classifiers of padded inputs: leaks are found in their place, and none in healthy ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tutorial_models import PAD, RecurrentLM, V, pairs

from unrolled.diagnosis import Adapter, Batch, check_padding, examine

TAGGER = Adapter(is_causal=False)


class Tagger(nn.Module):
    """One label a symbol, from both sides."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.embed, self.out = kind, nn.Embedding(V, 16, padding_idx=PAD), nn.Linear(16, 5)
        self.rnn = nn.GRU(16, 8, batch_first=True, bidirectional=True)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(getattr(self, f"_{self.kind}")(self.embed(words), words != PAD))

    def _packed(self, x, real):
        packed = pack_padded_sequence(x, real.sum(1), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])[0]

    def _unpacked(self, x, real):
        return self.rnn(x)[0]

    def _masked(self, x, real):
        return self.layer(x, src_key_padding_mask=~real)

    def _unmasked(self, x, real):
        return self.layer(x)

    def _convolution(self, x, real):
        return self.conv(x.mT).mT


class Classifier(nn.Module):
    """One answer a sequence."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.embed, self.out = kind, nn.Embedding(V, 16, padding_idx=PAD), nn.Linear(16, 5)
        self.rnn, self.flat = nn.GRU(16, 16, batch_first=True), nn.Linear(6 * 16, 16)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(getattr(self, f"_{self.kind}")(self.embed(words), words != PAD))

    def _mean(self, x, real):
        return self.rnn(x)[0].mean(1)

    def _mean_of_real(self, x, real):
        return (self.rnn(x)[0] * real[..., None]).sum(1) / real.sum(1, keepdim=True)

    def _largest(self, x, real):
        return self.rnn(x)[0].amax(1)

    def _largest_of_real(self, x, real):
        return self.rnn(x)[0].masked_fill(~real[..., None], -torch.inf).amax(1)

    def _last_column(self, x, real):
        return self.rnn(x)[1][-1]

    def _last_real(self, x, real):
        return self.rnn(x)[0][torch.arange(len(x)), real.sum(1) - 1]

    def _one_length(self, x, real):
        return self.flat(x.flatten(1))


class ToldClassifier(Classifier):
    """Is given lengths, and reads a mask off the ids all the same."""

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=words.shape[1])
        return self.out((states * (words != PAD)[..., None]).sum(1) / lengths[:, None])


class BagOfWords(nn.Module):
    """Divides by the number of real words, but adds up all of them: right as long as PAD is a vector of zeros."""

    def __init__(self, *, is_masked: bool) -> None:
        super().__init__()
        self.is_masked, self.embed, self.out = is_masked, nn.Embedding(V, 16, padding_idx=PAD), nn.Linear(16, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids) * (attention_mask[..., None] if self.is_masked else 1)
        return self.out(x.sum(1) / attention_mask.sum(1, keepdim=True))


def ragged() -> Batch:
    given = pairs(longest=6)
    tokens = given.inputs[:, 1:]  # (B, 6), without the start symbol
    return Batch(tokens, (tokens % 5).masked_fill(tokens == PAD, -100), pad=PAD)


@pytest.mark.parametrize(("kind", "place"), [("unpacked", "rnn"), ("unmasked", "layer.self_attn")])
def test_a_tagger_that_sees_padding(kind: str, place: str) -> None:
    torch.manual_seed(0)
    found = examine(Tagger(kind), ragged(), adapter=TAGGER, overfit=False)
    assert [(one.name, one.where.module) for one in found] == [("padding_leak", place)]
    assert found[0].measured.startswith("3 more padded columns of the inputs change the logits by")


@pytest.mark.parametrize("kind", ["packed", "masked", "convolution"])
def test_a_healthy_tagger(kind: str) -> None:
    torch.manual_seed(0)
    found = examine(Tagger(kind), ragged(), adapter=TAGGER, overfit=False)
    assert not found, str(found)
    assert "check_padding" in found.checked


@pytest.mark.parametrize(("kind", "place"), [("mean", "Classifier"), ("largest", "Classifier"), ("last_column", "rnn")])
@pytest.mark.parametrize("adapter", [None, TAGGER])
def test_a_classifier_that_sees_padding(kind: str, place: str, adapter: Adapter | None) -> None:
    torch.manual_seed(0)
    (found,) = check_padding(Classifier(kind), Batch(ragged().inputs, pad=PAD), adapter=adapter)
    assert (found.name, found.where.module) == ("padding_leak", place)


@pytest.mark.parametrize(
    "model",
    [
        *(
            lambda kind=kind: Classifier(kind)
            for kind in ("mean_of_real", "largest_of_real", "last_real", "one_length")
        ),
        lambda: ToldClassifier(""),
        lambda: BagOfWords(is_masked=True),
    ],
)
def test_a_healthy_classifier(model) -> None:
    torch.manual_seed(0)
    found = examine(model(), Batch(ragged().inputs, pad=PAD), overfit=False)
    assert not found, str(found)
    assert "check_padding" in found.checked


def test_what_stands_in_the_padding() -> None:
    torch.manual_seed(0)
    (found,) = check_padding(BagOfWords(is_masked=False), Batch(ragged().inputs, pad=PAD))
    assert found.measured.startswith("other symbols in the padding of the inputs change the logits")


def test_where_padding_cannot_matter() -> None:
    """A causal model reads it after all that is real; on the left it moves positions, and is meant to."""
    torch.manual_seed(0)
    batch = ragged()
    for model, other, adapter in (
        (RecurrentLM(), batch, None),
        (Tagger("unpacked"), Batch(batch.inputs.flip(1), pad=PAD), TAGGER),
        (Tagger("unpacked"), Batch(batch.inputs[:1], pad=PAD), TAGGER),
    ):
        found = examine(model, other, adapter=adapter, overfit=False)
        assert "padding_leak" not in found.names
        assert found.skipped["check_padding"] == "no padding that a real position could see"
