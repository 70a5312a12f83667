"""Language models alone: start, variational dropout, documents, the state that is carried on."""

import itertools
import math

import pytest
import torch
from conftest_models import LANGUAGE_DECODERS, SIZES, random_weights
from torch.nn import functional

from unrolled import config, models
from unrolled.models.dropout import variational_dropout
from unrolled.parameters import Sizes, initialise, inventory

EXACT = {"rtol": 0.0, "atol": 1e-10}
each_decoder = pytest.mark.parametrize("name", LANGUAGE_DECODERS)


def build(decoder):
    settings = config.LanguageModel(decoder=decoder)
    return models.build(settings, SIZES, random_weights(settings)).eval()


def ids(rows, length, seed=0):
    return torch.randint(0, SIZES.target, (rows, length), generator=torch.Generator().manual_seed(seed))


@each_decoder
def test_a_tied_model_starts_near_ln_v(name):
    sizes = Sizes(0, 0, 500)
    decoder = LANGUAGE_DECODERS[name].model_copy(update={"tie_embeddings": True})
    if isinstance(decoder, config.RecurrentLanguageDecoder):
        decoder = decoder.model_copy(update={"embedding_dim": decoder.hidden_size})
    settings = config.LanguageModel(decoder=decoder)
    model = models.build(settings, sizes, initialise(inventory(settings, sizes), seed=1)).eval()
    tokens = torch.randint(0, 500, (16, 21), generator=torch.Generator().manual_seed(0))
    logits = model.decode(tokens[:, :-1], None, model.initial_state(None, 16)).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - math.log(500)) < 0.02


@each_decoder
def test_documents_side_by_side_are_documents_alone(name):
    """Random resets over three chunks: every document is read as if nothing stood before it, in one call a chunk."""
    model, tokens = build(LANGUAGE_DECODERS[name]), ids(4, 24)
    reset = torch.rand(4, 24, generator=torch.Generator().manual_seed(1)) < 0.2
    state, logits, calls = model.initial_state(None, 4), [], []
    model.decoder.register_forward_hook(lambda *_: calls.append(1))
    for chunk, begins in zip(tokens.split(8, dim=1), reset.split(8, dim=1), strict=True):
        output = model.decode(chunk, None, state, reset=begins)
        state = output.state
        logits.append(output.logits)
    assert len(calls) == 3
    together = torch.cat(logits, dim=1)
    for row in range(4):
        starts = [0, *reset[row].nonzero().flatten().tolist(), 24]
        for begin, end in itertools.pairwise(starts):
            if begin < end:
                alone = model.decode(tokens[row : row + 1, begin:end], None, model.initial_state(None, 1)).logits
                torch.testing.assert_close(together[row : row + 1, begin:end], alone, **EXACT)


@each_decoder
def test_a_reset_at_padding_means_nothing(name):
    model, tokens = build(LANGUAGE_DECODERS[name]), ids(2, 6)
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[1, 3:] = True
    start, probe = model.initial_state(None, 2), ids(2, 3, seed=5)
    expected, output = (model.decode(tokens, None, start, mask=mask, reset=r) for r in (None, reset))
    torch.testing.assert_close(output.logits[mask], expected.logits[mask], **EXACT)
    after, wanted = (model.decode(probe, None, past.state).logits for past in (output, expected))
    torch.testing.assert_close(after, wanted, **EXACT)


@each_decoder
def test_a_carried_state_is_cut_and_its_gradient_ends_with_the_chunk(name):
    model, tokens = build(LANGUAGE_DECODERS[name]), ids(2, 10)
    first = model.decode(tokens[:, :5], None, model.initial_state(None, 2))
    later = model.decode(tokens[:, 5:], None, first.state.detach()).logits.square().sum()
    assert all(gradient is None for gradient in torch.autograd.grad(later, [first.logits], allow_unused=True))
    joined = model.decode(tokens[:, 5:], None, first.state).logits.square().sum()
    assert joined.item() == pytest.approx(later.item(), abs=1e-9)
    cut, whole = (torch.autograd.grad(loss, list(model.parameters())) for loss in (later, joined))
    assert not all(torch.allclose(a, b) for a, b in zip(cut, whole, strict=True))


def test_a_recurrent_model_starts_from_zero():
    state = build(LANGUAGE_DECODERS["lstm2"]).initial_state(None, 3)
    assert len(state.layers) == 2
    assert all(part.shape == (3, 7) and not part.any() for layer in state.layers for part in layer)


# --- variational dropout ---------------------------------------------------------------------------------------------


def test_one_mask_serves_all_steps_of_a_row():
    torch.manual_seed(0)
    x = torch.rand(50, 7, 40) + 0.5
    kept = variational_dropout(x, 0.25, True) / x
    assert torch.allclose(kept, kept[:, :1].expand_as(kept))
    assert 0.72 < (kept[:, 0] > 0).double().mean() < 0.78
    assert torch.allclose(kept[kept > 0], torch.tensor(1 / 0.75))
    assert not torch.equal(kept[0], kept[1])
    assert variational_dropout(x, 0.25, False) is x


def test_every_place_of_dropout_is_variational():
    """No recurrence, two layers, one symbol again and again: every step gives the same logits, rows differ."""
    decoder = config.RecurrentLanguageDecoder(
        cell="rnn", embedding_dim=9, hidden_size=11, num_layers=2, dropout=0.5, variational_dropout=True
    )
    outcomes = []
    for is_variational in (True, False):
        model = build(decoder.model_copy(update={"variational_dropout": is_variational})).train()
        with torch.no_grad():
            for layer in model.decoder.layers:
                layer.fwd.weight_hh.zero_()
        torch.manual_seed(1)
        logits = model.decode(torch.full((3, 6), 4), None, model.initial_state(None, 3)).logits
        outcomes.append(torch.allclose(logits, logits[:, :1].expand_as(logits)))
        assert not torch.allclose(logits[0], logits[1])
    assert outcomes == [True, False]
