"""Batches of running text: streams that go on from batch to batch, and shuffled windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.text.streams import Streams, Windows
from unrolled.text.vocabulary import BOS, EOS, PAD

sizes = st.integers(2, 80)


@given(size=sizes, batch_size=st.integers(1, 7), length=st.integers(1, 9))
def test_streams_read_the_text_once_and_in_order(size, batch_size, length):
    tokens = np.arange(4, size + 4, dtype=np.uint16)
    streams = Streams(tokens, batch_size=batch_size, length=length, seed=0)
    batches = [streams.batch(0, place) for place in range(len(streams))]
    assert [batch.is_continued for batch in batches] == [False] + [True] * (len(batches) - 1)
    inputs = np.concatenate([batch.inputs for batch in batches], axis=1)  # (B, stream)
    labels = np.concatenate([batch.labels for batch in batches], axis=1)
    assert (labels == inputs + 1).all()
    assert inputs.ravel().tolist() == list(range(4, 4 + inputs.size))
    assert size - 1 - inputs.size < len(inputs)  # what is left out at the end
    assert inputs.size == streams.num_labels
    assert all(batch.inputs.shape[1] <= length for batch in batches)
    assert batches[0].reset is None


def test_rows_of_a_stream_go_on_where_they_ended():
    streams = Streams(np.arange(4, 25, dtype=np.uint16), batch_size=2, length=4, seed=0)
    first, second = streams.batch(0, 0), streams.batch(0, 1)
    assert first.inputs.tolist() == [[4, 5, 6, 7], [14, 15, 16, 17]]
    assert second.inputs.tolist() == [[8, 9, 10, 11], [18, 19, 20, 21]]
    assert second.labels.tolist() == [[9, 10, 11, 12], [19, 20, 21, 22]]
    assert (first.rows.tolist(), second.rows.tolist()) == ([0, 10], [4, 14])
    assert len(streams) == 3
    assert streams.batch(1, 2).inputs.tolist() == [[12, 13], [22, 23]]


def test_three_chunks_in_a_hundred_forget_what_came_before():
    def resets(seed, epoch, *places):
        streams = Streams(np.arange(4, 40_100, dtype=np.uint16), batch_size=10, length=4, seed=seed)
        drawn = [streams.batch(epoch, place).reset for place in places or range(len(streams))]
        return np.array([np.zeros((10, 4), dtype=bool) if reset is None else reset for reset in drawn])

    ours = resets(0, 0)  # (1003, 10, 4)
    assert not ours[:, :, 1:].any()
    assert not any(resets(seed, 0, 0).any() for seed in range(50))  # the first chunk begins anew as a whole
    assert ours[:, :, 0].mean() == pytest.approx(0.03, abs=0.007)  # four standard deviations
    assert ours[:, :, 0].any(0).all()
    seen = np.flatnonzero(ours.any((1, 2)))
    assert (resets(0, 0, *seen[::-1]) == ours[seen[::-1]]).all()  # whatever was read before
    assert (resets(0, 1) != ours).any()
    assert (resets(1, 0) != ours).any()


@given(size=sizes, batch_size=st.integers(1, 7), length=st.integers(1, 9), epoch=st.integers(0, 3))
def test_windows_overlap_at_most_at_the_end(size, batch_size, length, epoch):
    tokens = np.arange(4, size + 4, dtype=np.uint16)
    windows = Windows(tokens, batch_size=batch_size, length=length, seed=1)
    batches = [windows.batch(epoch, place) for place in range(len(windows))]
    length = min(length, size - 1)
    rows = np.concatenate([batch.rows for batch in batches])
    starts = np.sort(rows)
    assert (np.diff(starts)[:-1] == length).all()
    assert (np.diff(starts) >= 1).all()
    assert starts[0] >= 0
    assert starts[-1] + length < size
    assert len(rows) == (size - 1) // length
    for batch in batches:
        assert (batch.inputs == 4 + batch.rows[:, None] + np.arange(length)).all()
        assert (batch.labels == batch.inputs + 1).all()
        assert len(batch.rows) <= batch_size


def test_windows_depend_on_seed_and_epoch_alone():
    tokens = np.arange(4, 4000, dtype=np.uint16)

    def order(seed, epoch, before=()):
        windows = Windows(tokens, batch_size=4, length=10, seed=seed)
        for other in before:
            windows.batch(other, 0)
        return windows.batch(epoch, 3).rows.tolist()

    assert order(1, 2) == order(1, 2, before=[0, 5]) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    edges = {order(1, epoch)[0] % 10 for epoch in range(8)}
    assert len(edges) > 2


def test_documents_reset_the_state_and_their_start_is_no_label():
    tokens = np.array([BOS, 5, 6, EOS, BOS, 7, EOS, BOS, 8, EOS])
    batch = Streams(tokens, batch_size=1, length=9, seed=0).batch(0, 0)
    assert batch.inputs.tolist() == [[BOS, 5, 6, EOS, BOS, 7, EOS, BOS, 8]]
    assert batch.labels.tolist() == [[5, 6, EOS, PAD, 7, EOS, PAD, 8, EOS]]
    assert batch.reset.tolist() == [[True, False, False, False, True, False, False, True, False]]
    assert (batch.num_labels, batch.num_tokens) == (7, 9)


@pytest.mark.parametrize("kind", [Streams, Windows])
def test_two_symbols_are_one_batch_of_one_label(kind):
    batches = kind(np.array([4, 5]), batch_size=8, length=32, seed=0)
    assert (len(batches), batches.batch(0, 0).inputs.tolist(), batches.batch(0, 0).labels.tolist()) == (1, [[4]], [[5]])
