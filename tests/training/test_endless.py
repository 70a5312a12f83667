"""Training on tasks: no step sees what another one saw, and a run of a task works like a run of a file."""

import numpy as np
import pytest
import torch

from unrolled import config, models, presets
from unrolled.config import Data, ReverseTask, Training
from unrolled.decoding import greedy
from unrolled.errors import ConfigError
from unrolled.inference import load
from unrolled.models.engine import TorchEngine
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.runs import Run
from unrolled.settings import resolve
from unrolled.text import prepare
from unrolled.text.tasks import draw_pairs, fixed_pairs
from unrolled.training import PairObjective, Stepper, rate_factor, train
from unrolled.training.endless import Endless
from unrolled.training.events import TrainingStarted

TASK = ReverseTask(alphabet="abcde", min_length=2, length=5, epoch_size=1000, dev_size=200)


def endless(task=TASK, **changes):
    settings = Training(**({"max_steps": 9, "max_batch_size": 32} | changes))
    prepared = prepare(f"task:{task.type}", None, Data(task=task), seed=settings.seed)
    return Endless.pairs(task, prepared.codec, settings, first=prepared.train), prepared.codec


def sources_of(batches):
    return [tuple(row[row > 3]) for batch in batches for row in batch.source]


def test_steps_go_through_the_examples_in_order():
    steps, codec = endless(accumulate=2)
    assert [len(steps.batches_of(1)), len(steps.batches_of(1)[0].rows), steps.steps_per_epoch] == [2, 32, 16]
    assert np.concatenate([batch.rows for step in (1, 2, 3) for batch in steps.batches_of(step)]).tolist() == [
        *range(192)
    ]
    wanted = draw_pairs(TASK, np.arange(64, 128), seed=0)
    for batch, first in zip(steps.batches_of(2), (0, 32), strict=True):
        for row in range(32):
            assert codec.decode_target(batch.labels[row]) == wanted.targets[first + row]
            assert codec.decode_target(batch.source[row]) == wanted.sources[first + row]


def test_the_seed_chooses_the_examples_and_the_budget_their_number():
    (steps, _), (others, _) = endless(), endless(seed=1)
    assert sources_of(steps.batches_of(3)) == sources_of(steps.batches_of(3)) != sources_of(others.batches_of(3))
    few, _ = endless(batch_tokens=60)  # the longest pair takes 12
    assert len(few.batches_of(1)[0].rows) == 5
    assert few.steps_per_epoch == 200


def test_epochs_are_counted_by_their_size():
    steps, _ = endless()
    assert [steps.epoch_of(step) for step in (0, 1, 32, 33)] == [1, 1, 1, 2]
    assert steps.num_examples == 1000
    mean = np.mean([sum(batch.num_tokens for batch in steps.batches_of(step)) for step in range(1, 40)])
    assert steps.tokens_per_step == pytest.approx(mean, rel=0.03)


STEPS = 250
LEAST = {"dot": 0.95, "general": 0.95, "additive": 0.95}
MOST = {"none": 0.1}


@pytest.mark.parametrize("attention", [*LEAST, *MOST])
def test_attention_learns_to_reverse_where_one_vector_is_too_narrow(attention):
    """A fixed vector has 16 numbers to keep up to eight letters in; the same model with attention need not."""
    task = ReverseTask(min_length=6, length=8, epoch_size=100, dev_size=300)
    changes = {"max_batch_size": 32, "optimizer": config.Optimizer(learning_rate=1e-2), "label_smoothing": 0.0}
    steps, codec = endless(task, **changes)
    size = {"cell": "gru", "embedding_dim": 16, "dropout": 0.0}
    settings = config.Seq2Seq(
        encoder=config.RecurrentEncoder(**size, hidden_size=16),
        decoder=config.RecurrentDecoder(**size, hidden_size=32, attention=attention),
    )
    sizes = Sizes(len(codec.source), 0, len(codec.target))
    model = models.build(settings, sizes, initialise(inventory(settings, sizes), 1))
    training = Training(max_steps=STEPS, **changes)
    stepper = Stepper(model, PairObjective(training, device=torch.device("cpu")), training.optimizer)
    for step in range(1, STEPS + 1):
        stepper.launch(steps.batches_of(step), rate_factor(config.Schedule(warmup_steps=50), step, STEPS), step=step)
    test = fixed_pairs(task, "test")
    found = greedy(
        TorchEngine(model, vocabulary_size=sizes.target), list(map(codec.encode_source, test.sources)), max_length=20
    )
    right = np.mean([codec.decode_target(one.ids) == y for one, y in zip(found, test.targets, strict=True)])
    assert LEAST.get(attention, 0) <= right <= MOST.get(attention, 1)


def small(**changes):
    return resolve(
        presets.tiny(),
        flags={
            "data.task": TASK.model_dump(),
            "training.max_steps": 40,
            "training.evaluate_every": 20,
            "model.encoder.hidden_size": 8,
            "model.decoder.hidden_size": 16,
            **changes,
        },
    )


def test_a_run_of_a_task_resumes_exactly(tmp_path):
    class StopError(Exception):
        pass

    def stop(event):
        if event.step == 25 and type(event).__name__ == "StepTaken":
            raise StopError

    whole = train("task:reverse", config=small(), out=tmp_path / "whole")
    with pytest.raises(StopError):
        train("task:reverse", config=small(**{"training.save_every": 10}), out=tmp_path / "part", listeners=[stop])
    resumed = train(resume=tmp_path / "part")
    assert resumed.best_value == whole.best_value
    assert (tmp_path / "part/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert Run.open(tmp_path / "part").data().train.path == "task:reverse"


def test_a_preset_is_enough_and_reports_stand_beside_the_best_without_input(tmp_path):
    events = []
    config = resolve(presets.tiny(), overrides=["training.max_steps=3"])
    train("task:copy", config=config, out=tmp_path / "run", listeners=[events.append])
    assert next(event for event in events if isinstance(event, TrainingStarted)).num_pairs == 10_000
    assert Run.open(tmp_path / "run").config.data.task == resolve(flags={"data.task.type": "copy"}).data.task
    report = load(tmp_path / "run").evaluate("task:copy")
    assert report.evaluation.whole.num_sources == 1000
    assert report.blind.error_rate == pytest.approx(1 - 1 / 64)
    assert "at best without reading the source: 98.44 % wrong sources, loss 2.0794 nats a label" in report.lines()
    assert report.to_json()["blind"]["error_rate"] == report.blind.error_rate
    assert len(report.predictions) == 1000
    other = load(tmp_path / "run").evaluate("task:sort")
    assert other.blind.loss < report.blind.loss


@pytest.mark.parametrize(
    ("path", "dev", "task", "message"),
    [
        ("task:copy", None, TASK, "data.task: expected the settings of task:copy, got task:reverse"),
        ("task:copy", None, None, "data.task: expected the settings of task:copy, got none"),
        ("words.tsv", None, TASK, "data.task draws pairs: give task:reverse in place of words.tsv"),
        ("task:reverse", "dev.tsv", TASK, "task:reverse has a dev set of its own; leave out dev.tsv"),
        ("task:reverse", None, ReverseTask(length=300), "data.task: its pairs are longer than data.source.max_length"),
    ],
)
def test_a_task_and_its_settings_must_agree(path, dev, task, message):
    with pytest.raises(ConfigError) as caught:
        prepare(path, dev, Data(task=task), seed=0)
    assert message in str(caught.value)
