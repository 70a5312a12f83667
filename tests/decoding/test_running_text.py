"""Running text read with a carried state and in windows, and written symbol by symbol, by models that count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unrolled.decoding import Context, SamplingPolicy, reading, text_log_probs, write
from unrolled.errors import ConfigError, DivergenceError
from unrolled.next_symbol import draw, filtered_probabilities
from unrolled.text.vocabulary import BOS, EOS, PAD

V = 12


class Memory:
    """A language model whose state is the list of all that a row has read; ln P tells how much that is.

    ln P(label) = −(symbols read) − label / 1000, and the next symbol is their sum modulo V − 4, plus 4.
    """

    vocabulary_size = V

    def __init__(self):
        self.calls = []  # shapes of what was read

    def stream_log_probs(self, inputs, labels, state=None, *, reset=None):
        self.calls.append(inputs.shape)
        pasts = [[] for _ in inputs] if state is None else [list(past) for past in state]
        found = np.zeros(inputs.shape)
        for row, (past, ids) in enumerate(zip(pasts, inputs, strict=True)):
            for step, id_ in enumerate(ids):
                if reset is not None and reset[row, step]:
                    past.clear()
                past.append(int(id_))
                found[row, step] = -len(past) - labels[row, step] / 1000
        return found, pasts

    def start(self, sources, *, need_attention=False):
        (prompt,) = sources
        self.calls.append((1, len(prompt)))
        return Stepper(self, prompt)


class Stepper:
    def __init__(self, model, prompt):
        self.model, self.read = model, list(prompt)

    def advance(self, tokens):
        self.model.calls.append((1, 1))
        self.read.append(int(tokens[0]))

    def _log_probs(self):
        values = np.full((1, V), -9.0)
        values[0, 4 + sum(self.read) % (V - 4)] = 0.0
        return values

    def sample(self, policy, uniforms):
        return draw(filtered_probabilities(self._log_probs(), policy), uniforms)

    def log_prob_of(self, ids):
        return self._log_probs()[0, ids]


def lengths_read(log_probs, tokens):
    """How much was read before each symbol was predicted."""
    return np.round(-log_probs - np.asarray(tokens[1:]) / 1000).astype(int)


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_carried_state_reads_everything_before_each_symbol(monkeypatch):
    monkeypatch.setattr(reading, "_MOST_STEPS", 7)
    tokens, model = np.arange(40) % 8 + 4, Memory()
    found = text_log_probs(model, tokens, context=Context(num_rows=1))
    assert lengths_read(found, tokens).tolist() == list(range(1, 40))
    assert {steps for _, steps in model.calls} == {7, 4}


@given(size=st.integers(2, 400), num_rows=st.integers(2, 9), warm_up=st.integers(1, 9))
@example(size=10, num_rows=2, warm_up=1)  # the two parts overlap in one symbol, within one call
def test_parts_of_a_text_begin_early_and_cover_it_once(size, num_rows, warm_up):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_WARM_UP", warm_up)
        patch.setattr(reading, "_MOST_STEPS", 5)
        tokens, model = np.arange(size) % 8 + 4, Memory()
        found = text_log_probs(model, tokens, context=Context(num_rows=num_rows))
    read = lengths_read(found, tokens)
    assert len(found) == size - 1
    everything = np.arange(1, size)
    assert (read <= everything).all()
    length = max(rows for rows, _ in model.calls)
    first_part = -(-(size - 1) // length)
    assert (read[:first_part] == everything[:first_part]).all()
    assert (read[first_part:] > warm_up).all()


@given(size=st.integers(2, 60), length=st.integers(2, 9), limit=st.integers(1, 400))
def test_windows_count_each_symbol_where_most_is_before_it(size, length, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_MOST_LOGITS", limit)
        tokens, model = np.arange(size) % 8 + 4, Memory()
        context = Context(length)
        found = text_log_probs(model, tokens, context=context)
    read = lengths_read(found, tokens)
    window = min(length, size - 1)
    assert read[:window].tolist() == list(range(1, window + 1))
    assert (read <= length).all()
    assert (read[window:] > length - context.stride).all()
    assert all(rows == 1 or rows * steps * V <= limit for rows, steps in model.calls)


def test_a_document_is_read_from_its_start_and_its_start_is_not_predicted():
    tokens = np.array([BOS, 5, 6, EOS, BOS, 7, EOS])
    for context in (Context(), Context(4)):
        found = text_log_probs(Memory(), tokens, context=context)
        assert found[3] == 0.0
        assert lengths_read(found, tokens)[[0, 1, 2, 4, 5]].tolist() == [1, 2, 3, 1, 2]


def test_reading_is_given_up_when_it_should_stop():
    tokens = np.full(50, 5)
    assert text_log_probs(Memory(), tokens, context=Context(), should_stop=lambda: True) is None
    assert text_log_probs(Memory(), tokens, context=Context(8), should_stop=lambda: True) is None


def test_a_broken_model_is_named():
    model = Memory()
    model.stream_log_probs = lambda inputs, labels, state=None, *, reset=None: (np.full(inputs.shape, np.nan), None)
    with pytest.raises(DivergenceError):
        text_log_probs(model, np.full(5, 5), context=Context())


def test_a_context_says_what_it_is():
    assert str(Context(num_rows=1)) == "all symbols before, carried in the state"
    assert str(Context()) == "all symbols before, carried in the state; parts of a long text begin 256 symbols early"
    assert str(Context(128)) == "windows of 128 symbols, 64 apart: at least 64 before each"


# --- writing ---------------------------------------------------------------------------------------------------------

GREEDY = SamplingPolicy(top_k=1, banned=(PAD, BOS))


def written(prompt, count, context, policy=GREEDY, seed=0, model=None):
    return list(write(model or Memory(), np.array(prompt), policy=policy, max_tokens=count, seed=seed, context=context))


def test_each_symbol_depends_on_all_before_it_where_the_state_is_carried():
    text, expected = [5, 9], []
    for _ in range(30):
        expected.append(4 + sum(text + expected) % (V - 4))
    assert written(text, 30, Context()) == expected


def test_a_full_window_goes_on_from_its_second_half():
    text, window = [5, 9], [5, 9]
    for _ in range(30):
        drawn = 4 + sum(window) % (V - 4)
        text.append(drawn)
        window.append(drawn)
        if len(window) > 6:
            window = window[-3:]
    assert written([5, 9], 30, Context(6)) == text[2:]
    assert written([4] * 50, 9, Context(6)) == written([4] * 6, 9, Context(6))


def test_the_cost_of_a_symbol_does_not_grow():
    carried, windowed = Memory(), Memory()
    written([5], 200, Context(), model=carried)
    assert carried.calls == [(1, 1)] * 200
    written([5], 200, Context(8), model=windowed)
    assert sum(steps for _, steps in windowed.calls) <= 2 * 200
    assert max(steps for _, steps in windowed.calls) == 4


def test_a_seed_gives_one_text_and_the_end_symbol_ends_it():
    policy = SamplingPolicy(temperature=9.0, banned=(PAD, BOS, EOS))
    first = written([5], 40, Context(), policy, seed=1)
    assert len(first) == 40
    assert written([5], 40, Context(), policy, seed=1) == first
    assert written([5], 40, Context(), policy, seed=2) != first
    assert written([5], 7, Context(), policy, seed=1) == first[:7]
    ended = written([5], 400, Context(), SamplingPolicy(temperature=9.0, banned=(PAD, BOS)), seed=1)
    assert ended[-1] == EOS
    assert EOS not in ended[:-1]


def test_symbols_come_as_they_are_drawn():
    model = Memory()
    stream = write(model, np.array([5]), policy=GREEDY, max_tokens=1000, seed=0, context=Context())
    next(stream)
    assert len(model.calls) == 1


@pytest.mark.parametrize(
    ("prompt", "count", "seed", "message"),
    [([], 5, 0, "needs a prompt"), ([5], -1, 0, "got -1 and 0"), ([5], 1, -2, "got 1 and -2")],
)
def test_senseless_requests_are_refused_before_anything_is_written(prompt, count, seed, message):
    with pytest.raises(ConfigError, match=message):
        write(Memory(), np.array(prompt), policy=GREEDY, max_tokens=count, seed=seed, context=Context())
    assert written([5], 0, Context()) == []
