"""Pieces of music and tasks of memory as batches of vectors."""

import gzip
import json
import math

import numpy as np
import pytest

from unrolled import config
from unrolled.errors import ConfigError, DataError, VocabularyError
from unrolled.text import FrameCodec, prepare_frames, read_pieces
from unrolled.text.tasks import draw_vectors, fixed_vectors, vector_task_of

MUSIC = {
    "train": [[[0, 3], [], [2]], [[1]]],
    "valid": [[[0]]],
    "test": [[[3], [3]]],
}


@pytest.fixture
def write(tmp_path):
    def make(content, name="music.json"):
        text = content if isinstance(content, str) else json.dumps(content)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return make


# --- music -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["music.json", "music.json.gz"])
def test_a_step_is_told_from_the_steps_before_it(write, name):
    pieces = read_pieces(write(MUSIC, name), "train", num_keys=4)
    assert (len(pieces), pieces.lengths.tolist(), pieces.num_tokens) == (2, [3, 1], 4)
    batch = pieces.batch(np.array([1, 0]))
    chords = [[[0, 1, 0, 0], [0] * 4, [0] * 4], [[1, 0, 0, 1], [0] * 4, [0, 0, 1, 0]]]
    assert batch.labels.tolist() == chords
    assert batch.inputs.tolist() == [[[0] * 4, *piece[:2]] for piece in chords]
    assert batch.counted.tolist() == [[True, False, False], [True] * 3]
    assert (batch.num_labels, batch.num_tokens, batch.rows.tolist()) == (4, 4, [1, 0])
    assert batch.inputs.dtype == batch.labels.dtype == np.float32


def test_processes_share_the_rows(write):
    batch = read_pieces(write(MUSIC), "train", num_keys=4).batch(np.array([0, 1]))
    parts = [batch.part(rank, 3) for rank in range(3)]
    assert [part.num_labels for part in parts] == [3, 1, 0]
    assert [part.rows.tolist() for part in parts] == [[0], [1], []]
    np.testing.assert_array_equal(parts[1].labels, batch.labels[1:])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "music.json, line 1: is not JSON"),
        ("{\n\n}}", "music.json, line 3: is not JSON"),
        ([[[1]]], "expected an object whose train, valid, test are lists of pieces, got no train"),
        ({"train": []}, "got no train"),
        ({"train": [[[1]], []]}, "train piece 2: expected a list of steps, got []"),
        ({"train": [[[1], 5]]}, "train piece 1, step 2: expected keys from 0 to 3, got 5"),
        ({"train": [[[1], [4]]]}, "train piece 1, step 2: expected keys from 0 to 3, got [4]; see data.num_keys"),
        ({"train": [[[-1]]]}, "train piece 1, step 1: expected keys from 0 to 3, got [-1]"),
        ({"train": [[[1.5]]]}, "got [1.5]"),
        ({"train": [[[True]]]}, "got [true]"),
    ],
)
def test_another_form_is_refused_where_it_is(write, content, message):
    with pytest.raises(DataError) as caught:
        read_pieces(write(content), "train", num_keys=4)
    assert message in str(caught.value)


def test_a_codec_survives_json():
    codec = FrameCodec(num_inputs=3, num_outputs=5)
    assert FrameCodec.from_json(json.loads(json.dumps(codec.to_json()))) == codec
    for wrong in ([], {"num_inputs": 3}, {"num_inputs": 3, "num_outputs": "5"}):
        with pytest.raises(VocabularyError, match="expected an object with the numbers"):
            FrameCodec.from_json(wrong)


def test_the_report_before_training(write):
    music = prepare_frames(write(MUSIC), None, config.FrameData(num_keys=4))
    assert music.report[0] == "train: 2 pieces, 4 steps, longest piece 3; at most 2 of 4 keys at once, mean 1.00"
    assert (music.codec, music.num_sequences) == (FrameCodec(4, 4), 2)
    task = prepare_frames("task:copy-memory", None, config.FrameData(task=config.CopyMemoryTask(lag=5, epoch_size=7)))
    assert task.report[0] == "task:copy_memory: 7 new sequences an epoch, 1000 for valid"
    assert task.report[1] == f"at best without reading the inputs: {10 * math.log(8) / 25:.4f} (nats an output)"
    assert (task.codec, task.train) == (FrameCodec(10, 9), None)
    with pytest.raises(ConfigError, match="expected the settings of task:adding, got task:copy_memory"):
        prepare_frames("task:adding", None, config.FrameData(task=config.CopyMemoryTask()))
    with pytest.raises(ConfigError, match="got two files"):
        prepare_frames(("a", "b"), None, config.FrameData())


# --- tasks -----------------------------------------------------------------------------------------------------------

TASKS = [config.AddingTask(length=7), config.CopyMemoryTask(lag=5)]
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.type)


@each_task
def test_a_sequence_depends_on_seed_and_index_alone(task):
    many, few = (draw_vectors(task, np.array(rows), seed=0) for rows in (range(20), [13, 2]))
    np.testing.assert_array_equal(few.inputs, many.inputs[[13, 2]])
    np.testing.assert_array_equal(few.labels, many.labels[[13, 2]])
    dev, test = (fixed_vectors(task, np.arange(20), part) for part in ("dev", "test"))
    others = [many, dev, test, draw_vectors(task, np.arange(20), seed=1)]
    assert len({batch.inputs.tobytes() for batch in others}) == 4
    codec = vector_task_of(task).codec
    assert many.inputs.shape[2] == codec.num_inputs
    assert many.num_tokens == many.inputs.shape[0] * many.inputs.shape[1]


@pytest.mark.parametrize("length", [2, 7, 50])
def test_adding(length):
    batch = draw_vectors(config.AddingTask(length=length), np.arange(2000), seed=0)
    numbers, marks = batch.inputs[..., 0], batch.inputs[..., 1]
    assert ((numbers >= 0) & (numbers <= 1)).all()
    half = length // 2
    assert (marks[:, :half].sum(1) == 1).all()
    assert (marks[:, half:].sum(1) == 1).all()
    assert (marks.sum(0) > 0).all()
    np.testing.assert_allclose(batch.labels[:, -1, 0], (numbers * marks).sum(1), rtol=1e-6)
    assert batch.counted.sum(0).tolist() == [0] * (length - 1) + [2000]
    best = vector_task_of(config.AddingTask(length=length)).best_loss()
    assert best == pytest.approx(1 / 6)
    assert ((batch.labels[:, -1, 0] - 1.0) ** 2).mean() == pytest.approx(best, rel=0.06)


def test_copy_memory():
    task = config.CopyMemoryTask(lag=5)
    batch = draw_vectors(task, np.arange(500), seed=0)
    ids = batch.inputs.argmax(-1)
    assert (batch.inputs.sum(-1) == 1).all()
    assert ids.shape == batch.labels.shape == (500, 25)
    assert set(np.unique(ids[:, :10])) == set(range(1, 9))
    assert (ids[:, 10:14] == 0).all()
    assert (ids[:, 14] == 9).all()
    assert (ids[:, 15:] == 0).all()
    assert (batch.labels[:, :15] == 0).all()
    np.testing.assert_array_equal(batch.labels[:, 15:], ids[:, :10])
    assert batch.counted.all()
    assert vector_task_of(task).best_loss() == pytest.approx(10 * math.log(8) / 25)
