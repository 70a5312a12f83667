import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from unrolled.errors import CheckpointError
from unrolled.runs import States, write_atomic


def arrays(value):
    return lambda: {"w": np.full(7, value, np.float32)}


@pytest.fixture
def states(tmp_path):
    return States(tmp_path / "resume")


def files(states):
    return sorted(path.name for path in states.folder.iterdir())


def save(states, step):
    states.save(step, {"best": 0.1 + step}, {f"weights-{step}": arrays(step)})


def test_values_and_arrays_read_back_exactly(states):
    states.save(3, {"best": 0.1 + 0.2, "none": None}, {"a": arrays(1), "b": arrays(2)})
    state = states.load()
    assert (state.step, state.values, state.damage) == (3, {"best": 0.1 + 0.2, "none": None}, ())
    np.testing.assert_array_equal(state.arrays["b"]["w"], np.full(7, 2.0))


def test_the_newest_two_are_kept(states):
    for step in (5, 10, 15, 20):
        save(states, step)
    assert states.steps() == [20, 15]
    assert files(states) == [
        "state-00000015.json",
        "state-00000020.json",
        "weights-15.safetensors",
        "weights-20.safetensors",
    ]


def test_shared_arrays_are_written_once_and_kept_as_long_as_needed(states):
    asked = []

    def best():
        asked.append(1)
        return {"w": np.zeros(1)}

    for step in range(1, 6):
        states.save(step, {}, {"weights-best": best, f"weights-{step}": arrays(step)})
    assert len(asked) == 1
    assert "weights-best" in states.load().arrays
    save(states, 6)
    save(states, 7)
    assert "weights-best.safetensors" not in files(states)


def test_without_any_state(states):
    assert states.newest_complete() is None
    with pytest.raises(CheckpointError, match="holds no state to resume from"):
        states.load()


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, truncate, os.unlink])
@pytest.mark.parametrize("name", ["weights-2.safetensors", "state-00000002.json"])
def test_damage_of_the_newest_falls_back_and_is_named(states, damage, name):
    save(states, 1)
    save(states, 2)
    damage(states.folder / name)
    state = states.load()
    assert state.step == 1 == states.newest_complete()
    if (damage, name) != (os.unlink, "state-00000002.json"):
        (line,) = state.damage
        assert name in line


def test_all_damaged(states):
    save(states, 1)
    save(states, 2)
    flip(states.folder / "weights-1.safetensors")
    truncate(states.folder / "state-00000002.json")
    with pytest.raises(CheckpointError, match=r"no state can be resumed from: .*state-00000002\.json") as caught:
        states.load()
    assert "weights-1.safetensors" in str(caught.value)


def test_a_damaged_group_is_written_again(states):
    save(states, 1)
    flip(states.folder / "weights-1.safetensors")
    states.save(2, {}, {"weights-1": arrays(1)})
    np.testing.assert_array_equal(states.load().arrays["weights-1"]["w"], np.ones(7))


def test_states_after_the_one_resumed_are_forgotten(states):
    for step in (1, 2):
        save(states, step)
    states.drop_after(1)
    assert files(states) == ["state-00000001.json", "weights-1.safetensors"]


def test_atomic_write_replaces_and_cleans_up(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"

    def full(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"newer")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


SAVER = """
import sys
import numpy as np
from pathlib import Path
from unrolled.runs import States
states = States(Path(sys.argv[1]))
for step in range(1, 100000):
    states.save(step, {}, {f"weights-{step}": lambda step=step: {"w": np.full(50000, step, np.float32)}})
    print(step, flush=True)
"""


def test_killed_at_any_moment(states):
    """A saved step is never lost, and leftovers do not pile up."""
    for attempt in range(4):
        saver = subprocess.Popen([sys.executable, "-c", SAVER, states.folder], stdout=subprocess.PIPE, text=True)
        saver.stdout.readline()
        time.sleep(0.02 + 0.013 * attempt)
        saver.send_signal(signal.SIGKILL)
        steps = [1, *map(int, saver.communicate()[0].split())]
        state = states.load()
        assert steps[-1] <= state.step <= steps[-1] + 1
        assert (state.arrays[f"weights-{state.step}"]["w"] == state.step).all()
        states.sweep()
        assert len(files(states)) <= 4
        states.clear()
        assert files(states) == []
