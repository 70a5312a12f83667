"""Whole models as they are trained: the loss before any step, and half precision."""

import math

import pytest
import torch

from unrolled import config, models, presets
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.training import cross_entropy_sum

V = 100


def tied_transformer(**options):
    size = {"d_model": 512, "d_ff": 256, "num_heads": 4, "num_layers": 2, **options}
    return config.Seq2Seq(
        encoder=config.TransformerEncoder(**size), decoder=config.TransformerDecoder(**size, tie_embeddings=True)
    )


def tied_recurrent(wiring):
    decoder = config.RecurrentDecoder(embedding_dim=512, hidden_size=512, tie_embeddings=True, wiring=wiring)
    return config.Seq2Seq(decoder=decoder)


OF_SYMBOLS = config.Seq2Seq | config.LanguageModel
PRESETS = {name: preset().model for name, preset in presets.PRESETS.items()}
STARTS = {name: model for name, model in PRESETS.items() if isinstance(model, OF_SYMBOLS)} | {
    "tied": tied_transformer(),
    "tied post-norm": tied_transformer(norm="post"),
    "tied learned": tied_transformer(positions="learned"),
    "tied luong": tied_recurrent("luong"),
    "tied bahdanau": tied_recurrent("bahdanau"),
}
HALVES = {
    "lstm": config.Seq2Seq(
        encoder=config.RecurrentEncoder(hidden_size=16, num_layers=2),
        decoder=config.RecurrentDecoder(hidden_size=16, num_layers=2),
    ),
    "gru": config.Seq2Seq(
        encoder=config.RecurrentEncoder(cell="gru", hidden_size=16),
        decoder=config.RecurrentDecoder(cell="gru", hidden_size=16, attention="additive", wiring="bahdanau"),
    ),
    "transformer": config.Seq2Seq(
        encoder=config.TransformerEncoder(d_model=16, d_ff=32, num_layers=2),
        decoder=config.TransformerDecoder(d_model=16, d_ff=32, num_layers=2, positions="rotary"),
    ),
    "convolution": config.Seq2Seq(
        encoder=config.ConvolutionEncoder(channels=16, num_layers=2, dropout=0.0),
        decoder=config.ConvolutionDecoder(channels=16, num_layers=2, dropout=0.0),
    ),
}


def build(settings):
    sizes = Sizes(source=V, features=0, target=V)
    return models.build(settings, sizes, initialise(inventory(settings, sizes), seed=1))


def batch(width, *, empty=None):
    """Random sources and labels; the row `empty` has neither, and the last row is short."""
    generator = torch.Generator().manual_seed(0)
    source, labels = torch.randint(4, V, (2, 16, width), generator=generator)
    mask = torch.ones(16, width, dtype=torch.bool)
    mask[-1, 2:] = False
    if empty is not None:
        mask[empty] = False
    labels = labels * mask
    inputs = torch.cat([torch.ones(16, 1, dtype=torch.int64), labels[:, :-1]], dim=1)
    return source * mask, mask, inputs, labels


def run(model, source, mask, inputs):
    memory = model.encode(source, mask) if isinstance(model, models.Seq2Seq) else None
    return model.decode(inputs, memory, model.initial_state(memory, len(source)), mask=mask, need_attention=True)


@pytest.mark.parametrize("name", STARTS)
def test_the_first_loss_is_near_ln_v(name):
    source, mask, inputs, labels = batch(11)
    with torch.no_grad():
        loss = cross_entropy_sum(run(build(STARTS[name]).eval(), source, mask, inputs).logits, labels) / mask.sum()
    assert abs(float(loss) - math.log(V)) < (0.2 if name.startswith("tied") else 0.7)


@pytest.mark.parametrize("width", [3, 30])  # plain products, and PyTorch's kernel
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 1e-3)])
@pytest.mark.parametrize("name", HALVES)
def test_training_in_half_precision(name, dtype, tolerance, width):
    model = build(HALVES[name])
    source, mask, inputs, labels = batch(width, empty=1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            output = run(model, source, mask, inputs)
        loss = cross_entropy_sum(output.logits, labels) / mask.sum()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1
    assert (output.attention[1] == 0).all()
    model.eval()
    with torch.no_grad():
        exact = run(model, source, mask, inputs).attention
        with torch.autocast("cpu", dtype=dtype):
            half = run(model, source, mask, inputs).attention
    torch.testing.assert_close(half.float()[mask], exact[mask], rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVES)
def test_a_model_of_half_precision_stays_finite(name, dtype):
    model = build(HALVES[name]).to(dtype)
    source, mask, inputs, _ = batch(30, empty=1)
    output = run(model, source, mask, inputs)
    assert torch.isfinite(output.logits).all()
    assert (output.attention[1] == 0).all()
    output.logits.float().square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
