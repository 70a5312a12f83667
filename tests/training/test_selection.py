import json
import math

import numpy as np
import pytest

from unrolled.training.selection import Candidate, Selection, average_weights


def weights(value):
    return {"w": np.full(3, value, np.float32)}


def fed(settings, values, losses=None):
    selection = Selection(settings)
    losses = losses or values
    pairs = zip(values, losses, strict=True)
    gains = [selection.add(Candidate(step, *pair), weights(step)) for step, pair in enumerate(pairs, start=1)]
    return selection, gains


def test_the_first_of_the_best_is_kept(settings):
    selection, gains = fed(settings(), [3.0, 2.0, 2.0, 5.0])
    assert gains == [True, True, False, False]
    assert selection.best.step == 2
    assert selection.snapshots.keys() == {2}
    np.testing.assert_array_equal(selection.best_weights()["w"], 2.0)


def test_equal_values_are_told_apart_by_loss(settings):
    selection, gains = fed(settings(), [1.0, 1.0, 1.0], [3.0, 2.0, 2.5])
    assert gains == [True, True, False]
    assert selection.best.step == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_never_best(settings, bad):
    selection, gains = fed(settings(patience=2), [bad, 5.0, bad, bad])
    assert gains == [False, True, False, False]
    assert selection.best.step == 2
    assert selection.is_exhausted


def test_patience(settings):
    for values, is_exhausted in (([3, 4, 5], True), ([3, 4, 2], False), ([3, 4, 2, 9, 9], True), ([3, 4], False)):
        assert fed(settings(patience=2), values)[0].is_exhausted == is_exhausted
    assert not fed(settings(), [1, 2, 3, 4])[0].is_exhausted


def test_average_of_the_last(settings):
    selection, _ = fed(settings(average="last", average_count=3), [1.0, 5.0, 4.0, 3.0, 2.0])
    np.testing.assert_allclose(selection.averaged()["w"], 4.0)
    assert selection.snapshots.keys() == {1, 3, 4, 5}


def test_average_of_the_best(settings):
    selection, _ = fed(settings(average="best", average_count=2), [3.0, 1.0, 5.0, 2.0])
    np.testing.assert_allclose(selection.averaged()["w"], 3.0)
    assert selection.snapshots.keys() == {2, 4}


def test_no_average_of_one_or_without_asking(settings):
    assert fed(settings(average="best"), [1.0])[0].averaged() is None
    assert fed(settings(), [1.0, 2.0, 3.0])[0].averaged() is None


def test_averages_are_summed_in_float64():
    checkpoints = [{"w": np.array([value], np.float32)} for value in (1e8, 1.0, 1.0, 1.0, -1e8)]
    average = average_weights(checkpoints)["w"]
    assert average.dtype == np.float32
    np.testing.assert_array_equal(average, np.float32(0.6))


def test_it_survives_json(settings):
    rules = settings(average="best", average_count=2, patience=3)
    selection, _ = fed(rules, [3.0, 1.0, 5.0, 2.0])
    copy = Selection.from_json(rules, json.loads(json.dumps(selection.to_json())), selection.snapshots)
    assert copy.to_json() == selection.to_json()
    assert copy.add(Candidate(5, 0.5, 0.5), weights(5)) == selection.add(Candidate(5, 0.5, 0.5), weights(5))
    assert copy.to_json() == selection.to_json()
    assert copy.snapshots.keys() == selection.snapshots.keys() == {2, 5}
