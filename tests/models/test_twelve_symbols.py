"""Twelve symbols, decoded whole, as six and six single steps, one by one, and by a beam that reorders its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unrolled import config, models, reference
from unrolled.decoding import beam_search
from unrolled.parameters import Sizes, inventory
from unrolled.reference.engine import NumpyEngine, NumpyStepper

SIZES = Sizes(source=11, features=0, target=9)
SMALL = {"d_model": 12, "d_ff": 16, "num_layers": 2, "num_heads": 2, "max_positions": 32}
DECODERS = {
    "lstm": config.RecurrentDecoder(embedding_dim=5, hidden_size=12, num_layers=2),
    "input feeding": config.RecurrentDecoder(embedding_dim=5, hidden_size=12, wiring="luong_input_feeding"),
    **{name: config.TransformerDecoder(**SMALL, positions=name) for name in ("sinusoidal", "learned", "rotary")},
}
SOURCE = np.array([[4, 5, 6, 7, 8, 9, 2], [9, 8, 2, 0, 0, 0, 0]])
SYMBOLS = np.array([[1, 4, 5, 6, 7, 8, 4, 5, 3, 7, 8, 6], [1, 8, 7, 6, 5, 4, 8, 7, 6, 3, 4, 5]])  # (2, 12)


@pytest.fixture(params=DECODERS.values(), ids=DECODERS)
def settings(request):
    return config.Seq2Seq(encoder=config.RecurrentEncoder(embedding_dim=5, hidden_size=7), decoder=request.param)


def weights_of(settings):
    rng = np.random.default_rng(2)
    return {name: rng.normal(0.0, 0.6, shape).astype(np.float32) for name, shape, _ in inventory(settings, SIZES)}


@pytest.fixture(params=["torch", "numpy"])
def decoder(request, settings):
    """`decode(symbols, state)` to logits and the next state, by either engine; without a state from the start."""
    is_torch = request.param == "torch"
    array = torch.from_numpy if is_torch else np.asarray
    room = models if is_torch else reference
    model = room.build(settings, SIZES, weights_of(settings))
    if is_torch:
        model.eval()
    memory = model.encode(array(SOURCE), array(SOURCE != 0))

    def decode(symbols, state=None, **options):
        options = {name: array(value) for name, value in options.items()}
        state = model.initial_state(memory, len(symbols)) if state is None else state
        output = model.decode(array(symbols), memory, state, **options)
        return output.logits.detach().numpy() if is_torch else output.logits, output.state

    return decode


def in_parts(decode, symbols, sizes):
    parts, state = [], None
    for part in np.split(symbols, np.cumsum(sizes)[:-1], axis=1):
        logits, state = decode(part, state)
        parts.append(logits)
    return np.concatenate(parts, axis=1)


def test_whole_is_six_and_single_steps_is_single_steps(decoder):
    whole, _ = decoder(SYMBOLS)
    tolerance = 1e-5 * max(1.0, np.abs(whole).max())
    np.testing.assert_allclose(in_parts(decoder, SYMBOLS, [6, *[1] * 6]), whole, rtol=0, atol=tolerance)
    np.testing.assert_allclose(in_parts(decoder, SYMBOLS, [1] * 12), whole, rtol=0, atol=tolerance)


def test_a_longer_call_before_leaves_nothing_behind(decoder):
    first, _ = decoder(SYMBOLS[:, :4])
    decoder(np.concatenate([SYMBOLS, SYMBOLS], axis=1))
    again, _ = decoder(SYMBOLS[:, :4])
    np.testing.assert_array_equal(again, first)


def test_rows_of_different_length_go_on_where_they_ended(decoder):
    """Row 1 has six real symbols of the first eight; its seventh has position 6, not 8."""
    mask = np.arange(8) < np.array([[8], [6]])
    _, state = decoder(SYMBOLS[:, :8], mask=mask)
    after, _ = decoder(np.array([SYMBOLS[0, 8:9], SYMBOLS[1, 6:7]]), state)
    whole, _ = decoder(SYMBOLS)
    np.testing.assert_allclose(after[:, 0], [whole[0, 8], whole[1, 6]], rtol=0, atol=1e-5 * np.abs(whole).max())


class ForgetfulStepper(NumpyStepper):
    """Decodes everything anew at each step."""

    fed = np.array([[1], [1]])

    def advance(self, tokens):
        self.fed = np.concatenate([self.fed, tokens[:, None]], axis=1)  # (R, n)
        self._state = self._model.initial_state(self._memory, len(tokens))
        for symbols in self.fed.T:
            super().advance(symbols)

    def select(self, rows, sources=None):
        super().select(rows, sources)
        self.fed = self.fed[rows]


def test_a_reordered_cache_gives_the_strings_of_no_cache(settings, monkeypatch):
    engine = NumpyEngine(reference.build(settings, SIZES, weights_of(settings)), vocabulary_size=SIZES.target)
    sources = [np.array([4, 5, 6, 7, 2]), np.array([9, 8, 2])]
    cached = beam_search(engine, sources, max_length=12, beam=4, num_best=4)
    monkeypatch.setattr("unrolled.reference.engine.NumpyStepper", ForgetfulStepper)
    for mine, other in zip(cached, beam_search(engine, sources, max_length=12, beam=4, num_best=4), strict=True):
        assert [item.ids.tolist() for item in mine] == [item.ids.tolist() for item in other]
