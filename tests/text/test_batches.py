import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled.config import Data
from unrolled.text import (
    BOS,
    EOS,
    PAD,
    Codec,
    Examples,
    Ragged,
    collate,
    evaluation_batches,
    in_order,
    pad_rows,
    padding_share,
    plan_batches,
    shift,
    show_batch,
)

S, E, P = BOS, EOS, PAD
LIMITS = {"batch_tokens": 64, "max_batch_size": 7}

lengths = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 80)), max_size=60)


@pytest.fixture
def codec():
    return Codec.fit(Data(), ["xyz"], ["abc"])


def examples_of(codec, sources, targets, features=None):
    return Examples(
        codec.encode_sources(sources, features), codec.encode_targets(targets), np.arange(len(sources)) + 10
    )


def test_one_step_shift_with_padded_targets(codec):
    a, b, c = codec.encode_target("abc")[:3].tolist()
    batch = collate(examples_of(codec, ["x", "zyx"], ["abc", "a"]), np.array([0, 1]))
    assert batch.inputs.tolist() == [[S, a, b, c], [S, a, E, P]]
    assert batch.labels.tolist() == [[a, b, c, E], [a, E, P, P]]
    assert batch.num_labels == 6
    assert (batch.labels == E).sum(axis=1).tolist() == [1, 1]
    assert not (batch.labels == S).any()
    assert batch.source_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.rows.tolist() == [10, 11]
    assert batch.source.dtype == batch.inputs.dtype == batch.labels.dtype == np.int64
    assert show_batch(batch, codec) == [
        "row 10 source [x,E,P,P]",
        "  inputs [S,a,b,c]",
        "  labels [a,b,c,E]",
        "row 11 source [z,y,x,E]",
        "  inputs [S,a,E,P]",
        "  labels [a,E,P,P]",
        "2 rows, 6 labels counted",
    ]


def test_shift_of_one_step_is_the_start_symbol():
    assert shift(np.array([[E], [E]])).tolist() == [[S], [S]]


def test_rows_of_a_batch_follow_the_indices(codec):
    examples = examples_of(codec, ["x", "y", "z"], ["a", "b", "c"])
    assert collate(examples, np.array([2, 0])).rows.tolist() == [12, 10]
    assert collate(examples, np.array([2, 0])).labels[:, 0].tolist() == [
        codec.encode_target("c")[0],
        codec.encode_target("a")[0],
    ]


@given(st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1, max_size=6))
def test_padding_keeps_every_row(rows):
    ids, mask = pad_rows([np.array(row, dtype=np.int32) for row in rows], fill=PAD)
    assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == rows
    assert not ids[~mask].any()
    assert ids.shape == mask.shape == (len(rows), max(map(len, rows)))
    packed = Ragged.from_rows(rows)
    assert [packed[place].tolist() for place in range(len(packed))] == rows
    assert packed[-1].tolist() == rows[-1]


@given(st.lists(st.tuples(st.lists(st.integers(4, 9), max_size=4), st.lists(st.integers(4, 9), max_size=4))))
def test_append_joins_row_by_row(rows):
    joined = Ragged.from_rows([first for first, _ in rows]).append(Ragged.from_rows([second for _, second in rows]))
    assert [joined[place].tolist() for place in range(len(joined))] == [first + second for first, second in rows]


# --- plans -----------------------------------------------------------------------------------------------------------


def cost(batch, source, target):
    return len(batch) * (source[batch].max() + target[batch].max())


@given(lengths, st.integers(0, 3), st.integers(0, 3))
def test_plans_use_each_example_once_within_the_budget(pairs, seed, epoch):
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    batches = plan_batches(source, target, **LIMITS, seed=seed, epoch=epoch)
    assert sorted(place for batch in batches for place in batch.tolist()) == list(range(len(pairs)))
    for batch in batches:
        assert 1 <= len(batch) <= LIMITS["max_batch_size"]
        assert len(batch) == 1 or cost(batch, source, target) <= LIMITS["batch_tokens"]


def test_budget_is_used_up():
    ones = np.ones(100, dtype=np.int64)
    batches = plan_batches(ones * 3, ones * 5, batch_tokens=64, max_batch_size=100, seed=0, epoch=0)
    assert sorted(map(len, batches)) == [4] + [8] * 12


def test_a_long_example_is_alone_and_makes_no_other_batch_small():
    source = np.array([100_000] + [4] * 64)
    batches = plan_batches(source, np.full(65, 4), batch_tokens=64, max_batch_size=512, seed=0, epoch=0)
    assert sorted(map(len, batches)) == [1] + [8] * 8
    assert next(batch for batch in batches if len(batch) == 1).tolist() == [0]


def test_plans_depend_on_seed_and_epoch_alone():
    generator = np.random.default_rng(3)
    source, target = generator.integers(1, 20, (2, 300))

    def plan(seed, epoch):
        return [
            batch.tolist()
            for batch in plan_batches(source, target, batch_tokens=256, max_batch_size=64, seed=seed, epoch=epoch)
        ]

    assert plan(1, 2) == plan(1, 2)
    assert plan(1, 2) != plan(1, 3)
    assert plan(1, 2) != plan(2, 2)
    assert plan(1, 2) != plan(2, 1)


def test_batches_are_shuffled_and_composed_anew():
    source = np.repeat([3, 9], 200)
    plans = [plan_batches(source, source, batch_tokens=128, max_batch_size=64, seed=0, epoch=e) for e in range(2)]
    firsts = [source[batch[0]] for batch in plans[0]]
    assert firsts != sorted(firsts)
    assert firsts != sorted(firsts, reverse=True)
    mates = [{frozenset(batch.tolist()) for batch in plan} for plan in plans]
    assert len(mates[0] & mates[1]) < len(mates[0]) / 4


def test_little_is_padding():
    generator = np.random.default_rng(0)
    source = generator.poisson(7, 10_000) + 2
    target = np.maximum(1, source + generator.integers(-3, 3, 10_000))
    batches = plan_batches(source, target, batch_tokens=2048, max_batch_size=512, seed=0, epoch=0)
    assert padding_share(batches, source, target) < 0.05
    random = np.array_split(generator.permutation(10_000), len(batches))
    assert padding_share(random, source, target) > 0.3


def share_of(source, target):
    batches = plan_batches(source, target, batch_tokens=1024, max_batch_size=512, seed=0, epoch=0)
    return padding_share(batches, source, target)


def test_little_is_padding_whatever_the_lengths():
    generator = np.random.default_rng(0)
    short, long = generator.integers(3, 6, 4000), generator.integers(5, 60, 4000)
    assert share_of(short, long) < 0.022  # 0.41 if sorted by the first alone
    assert share_of(long, short) < 0.022
    assert share_of(*generator.integers(5, 15, (2, 4000))) < 0.04  # 0.053 without going back and forth
    few = generator.geometric(0.1, 600) + 1
    assert share_of(few, np.maximum(2, few + generator.integers(-3, 4, 600))) < 0.15  # 0.17 by source length


@given(lengths)
def test_evaluation_order_is_undone(pairs):
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    for batches in (evaluation_batches(source, target, **LIMITS), evaluation_batches(source, **LIMITS)):
        assert in_order(batches, [batch.tolist() for batch in batches]) == list(range(len(pairs)))
        longest = [source[batch].max() for batch in batches]
        assert longest == sorted(longest, reverse=True)
