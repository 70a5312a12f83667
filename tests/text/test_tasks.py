"""Synthetic tasks: right answers, examples that depend on seed and index alone, and exact marks without input."""

import math
from collections import Counter
from datetime import date, timedelta
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled import config
from unrolled.errors import ConfigError
from unrolled.settings import resolve
from unrolled.text import UNK, prepare, tasks
from unrolled.text.chance import uniforms

TASKS = [config.CopyTask(), config.ReverseTask(), config.SortTask(), config.AdditionTask(), config.DatesTask()]
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.type)


def drawn(task, rows, seed=0):
    return tasks.draw_pairs(task, np.asarray(rows), seed=seed)


# --- chance ----------------------------------------------------------------------------------------------------------


def test_splitmix64_gives_its_published_numbers():
    # The first outputs of SplitMix64 from state 1234567, as printed with the algorithm's reference programs.
    from unrolled.text.chance import GAMMA, _mixed

    outputs = _mixed(np.uint64(1234567) + GAMMA * np.arange(1, 4, dtype=np.uint64))
    assert outputs.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(1, 9), st.integers(0, 2**31))
def test_a_number_depends_on_its_place_alone(rows, count, seed):
    numbers = uniforms(seed, 3, rows=np.array(rows), count=count)
    assert ((numbers >= 0) & (numbers < 1)).all()
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(
            uniforms(seed, 3, rows=np.array([row]), count=count + 2)[0, :count], numbers[place]
        )


def test_numbers_are_uniform_and_unrelated():
    numbers = uniforms(0, 0, rows=np.arange(20_000), count=4)
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    assert ((counts - 1600) ** 2 / 1600).sum() < 100  # chi-square, 49 degrees of freedom: mean 49, std 10
    others = [uniforms(*key, rows=np.arange(20_000), count=4) for key in ((1, 0), (0, 1))]
    flat = np.stack([*numbers.T, *others[0].T, *others[1].T, numbers[np.r_[1:20_000, 0], 0]])
    correlations = np.corrcoef(flat) - np.eye(len(flat))
    assert abs(correlations[:12, :12]).max() < 0.04
    assert abs(correlations[-1, 1:12]).max() < 0.04


# --- pairs -----------------------------------------------------------------------------------------------------------


@each_task
def test_an_example_depends_on_seed_and_index_alone(task):
    many = drawn(task, range(50))
    few = drawn(task, [49, 7])
    assert few.sources == [many.sources[49], many.sources[7]]
    assert few.targets == [many.targets[49], many.targets[7]]
    assert few.lines.tolist() == [50, 8]
    assert drawn(task, range(50), seed=1).sources != many.sources
    assert len(set(drawn(task, range(10**12, 10**12 + 2000)).sources)) > 1000


@each_task
def test_dev_and_test_are_fixed_and_no_part_repeats_another(task):
    dev, test, train = tasks.fixed_pairs(task, "dev"), tasks.fixed_pairs(task, "test"), drawn(task, range(1000))
    assert len(dev) == len(test) == 1000
    assert dev.sources == tasks.fixed_pairs(task, "dev").sources
    assert dev.sha256 != test.sha256 != train.sha256
    parts = [pairs.sources for pairs in (dev, test, train)]
    assert all(
        sum(a == b for a, b in zip(x, y, strict=True)) < 30 for x, y in ((parts[0], parts[1]), (parts[0], parts[2]))
    )


@pytest.mark.parametrize(("task", "rule"), [("copy", list), ("reverse", lambda text: text[::-1]), ("sort", sorted)])
def test_strings(task, rule):
    settings = {"copy": config.CopyTask, "reverse": config.ReverseTask, "sort": config.SortTask}[task]
    pairs = drawn(settings(alphabet="zé日a", min_length=2, length=5), range(2000))
    assert [list(target) for target in pairs.targets] == [list(rule(source)) for source in pairs.sources]
    lengths = Counter(map(len, pairs.sources))
    assert set(lengths) == {2, 3, 4, 5}
    assert min(lengths.values()) > 420
    symbols = Counter("".join(pairs.sources))
    assert set(symbols) == set("zé日a")
    assert max(symbols.values()) < 1.15 * min(symbols.values())


def test_addition():
    pairs = drawn(config.AdditionTask(digits=2), range(5000))
    summands = [tuple(map(int, source.split("+"))) for source in pairs.sources]
    assert [str(a + b) for a, b in summands] == pairs.targets
    assert {a for a, _ in summands} == {b for _, b in summands} == set(range(100))


def test_dates():
    pairs = drawn(config.DatesTask(first_year=1996, last_year=2004), range(5000))
    ways = set()
    for source, target in zip(pairs.sources, pairs.targets, strict=True):
        day = date.fromisoformat(target)
        month, weekday = f"{day:%B}", f"{day:%A}"
        written = [
            f"{day.day} {month} {day.year}",
            f"{month} {day.day}, {day.year}",
            f"{month[:3]} {day.day}, {day.year}",
            f"{weekday}, {day.day} {month} {day.year}",
            f"{day.day}.{day.month}.{day.year}",
            f"{day.month}/{day.day}/{day.year}",
        ]
        ways.add(written.index(source))
    assert ways == set(range(6))
    days = {date.fromisoformat(target) for target in pairs.targets}
    assert min(days) >= date(1996, 1, 1)
    assert max(days) <= date(2004, 12, 31)
    assert len(days) > 2400  # of 3288


@each_task
def test_every_symbol_is_in_the_vocabularies(task):
    source, target = tasks.vocabularies(task, "NFC")
    pairs = drawn(task, range(3000))
    assert set("".join(pairs.sources)) == set(source.symbols)
    assert set("".join(pairs.targets)) == set(target.symbols)


def test_vocabularies_are_in_the_normal_form_of_the_data():
    data = config.Data(task=config.ReverseTask(alphabet="éa"), normal_form="NFD")
    prepared = prepare("task:reverse", None, data, seed=0)
    assert prepared.codec.source.symbols == ("a", "e", "\u0301")
    assert not prepared.train.source.rows_with(UNK)
    assert prepared.codec.decode_target(prepared.train.target[3]) == prepared.train_pairs.targets[3]


# --- without input ---------------------------------------------------------------------------------------------------


def strings(task):
    """All sources with their probabilities."""
    lengths = range(task.min_length, task.length + 1)
    size = len(task.alphabet)
    for length in lengths:
        for symbols in product(task.alphabet, repeat=length):
            yield "".join(symbols), 1 / len(lengths) / size**length


@pytest.mark.parametrize(
    ("task", "answers"),
    [
        (config.CopyTask(alphabet="abc", length=4), lambda task: strings(task)),
        (config.ReverseTask(alphabet="ab", min_length=2, length=5), lambda task: strings(task)),
        (config.SortTask(alphabet="abc", length=5), lambda task: (("".join(sorted(s)), p) for s, p in strings(task))),
        (
            config.SortTask(alphabet="ab", min_length=4, length=4),
            lambda task: (("".join(sorted(s)), p) for s, p in strings(task)),
        ),
        (config.AdditionTask(digits=1), lambda _: ((str(a + b), 0.01) for a in range(10) for b in range(10))),
        (config.AdditionTask(digits=2), lambda _: ((str(a + b), 1e-4) for a in range(100) for b in range(100))),
        (
            config.DatesTask(first_year=1999, last_year=2000),
            lambda _: ((str(date(1999, 1, 1) + timedelta(n)), 1 / 731) for n in range(731)),
        ),
    ],
    ids=["copy", "reverse", "sort", "sort of one length", "digits", "two digits", "dates"],
)
def test_the_best_without_input_is_that_of_all_answers_counted(task, answers):
    probs = Counter()
    for answer, prob in answers(task):
        probs[answer] += prob
    assert sum(probs.values()) == pytest.approx(1.0)
    entropy = -sum(prob * math.log(prob) for prob in probs.values())
    num_labels = sum(prob * (len(answer) + 1) for answer, prob in probs.items())
    blind = tasks.task_of(task).blind()
    assert blind.error_rate == pytest.approx(1 - max(probs.values()), abs=1e-12)
    assert blind.loss == pytest.approx(entropy / num_labels, rel=1e-12)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.task.alphabet=aa"], "data.task: alphabet needs two or more different visible characters, got 'aa'"),
        (["data.task.alphabet=a b"], "alphabet needs"),
        (["data.task.alphabet=a"], "alphabet needs"),
        (["data.task.min_length=9"], "data.task: min_length must not be above length, got 9 and 8"),
        (["data.task.lengh=9"], "data.task.lengh: unknown setting; did you mean data.task.length"),
        (["data.target.units=space"], "data: task=copy is made of characters"),
        (["data.shared_vocabulary=true"], "data: task=copy has vocabularies of its own"),
        (["data.task.type=cop"], "data.task.type: expected copy or reverse or sort or addition or dates"),
    ],
)
def test_senseless_tasks_are_refused_by_name(overrides, message):
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=["data.task.type=copy", *overrides])
    assert message in str(caught.value)
