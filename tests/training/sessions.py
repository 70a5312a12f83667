"""Listeners that crash and interrupt training, and what a run holds when it ends."""

import json
import os
from pathlib import Path

import numpy as np

from unrolled.parameters import Sizes, inventory
from unrolled.runs import Run
from unrolled.text import Codec
from unrolled.training.events import StepTaken


class Recorder(list):
    def __call__(self, event):
        self.append(event)

    def of(self, kind):
        return [event for event in self if type(event) is kind]


class CrashError(Exception):
    pass


def crash_at(step):
    """A listener that ends everything once this step is reported."""

    def listen(event):
        if isinstance(event, StepTaken) and event.step == step:
            raise CrashError

    return listen


def signal_at(number, wanted):
    """A listener that sends this process a signal at the first event that is wanted."""
    sent = []

    def listen(event):
        if wanted(event) and not sent:
            sent.append(event)
            os.kill(os.getpid(), number)

    return listen


def is_step(step):
    return lambda event: isinstance(event, StepTaken) and event.step == step


def weights_of(path):
    run = Run.open(path)
    codec = Codec.from_json(run.vocabulary())
    sizes = Sizes(len(codec.source), codec.source.num_features, len(codec.target))
    return run.weights({parameter.name: parameter.shape for parameter in inventory(run.config.model, sizes)})


def state_of(path):
    """The last state of a run, without what clocks gave."""
    state = Run.open(path).states.load()
    del state.values["progress"]["seconds"]
    return state


def assert_same_arrays(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.array_equal(value, other[name]), name


def assert_same_runs(one, other):
    """Weights, moments, random states, selection and logged losses, to the last bit."""
    assert_same_arrays(weights_of(one), weights_of(other))
    first, second = state_of(one), state_of(other)
    assert first.values == second.values
    assert first.arrays.keys() == second.arrays.keys()
    for group, arrays in first.arrays.items():
        assert_same_arrays(arrays, second.arrays[group])
    assert losses_of(one) == losses_of(other)


def log_of(path):
    return [json.loads(line) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]


def losses_of(path):
    return [(line["step"], line["loss"]) for line in log_of(path) if line["event"] == "StepTaken"]
