"""Training on running text: the carried state, exact resume, documents, and what the held-out text comes to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import unrolled
from unrolled import models, parameters
from unrolled.config import (
    Config,
    LanguageModel,
    Optimizer,
    RecurrentLanguageDecoder,
    Schedule,
    Text,
    Training,
    TransformerDecoder,
)
from unrolled.decoding import Context
from unrolled.errors import ConfigError, DataError
from unrolled.models.contract import leaves
from unrolled.parameters import Sizes
from unrolled.runs import Run
from unrolled.text.streams import Streams, text_batch
from unrolled.text.vocabulary import BOS, EOS
from unrolled.training.events import Evaluated, StepTaken
from unrolled.training.text import TextDev, TextObjective, TextSteps

CPU = torch.device("cpu")
SIZES = Sizes(source=0, features=0, target=12)
RECURRENT = RecurrentLanguageDecoder(cell="lstm", embedding_dim=6, hidden_size=7, num_layers=2, dropout=0.0)
WINDOWED = TransformerDecoder(d_model=8, d_ff=8, num_layers=1, num_heads=2, dropout=0.0)


def build(decoder=RECURRENT, seed=0):
    settings = LanguageModel(decoder=decoder)
    return models.build(settings, SIZES, parameters.initialise(parameters.inventory(settings, SIZES), seed))


def config(decoder=RECURRENT, *, text=None, **training):
    options = {"max_steps": 8, "batch_tokens": 64, "label_smoothing": 0.0, "schedule": Schedule(warmup_steps=2)}
    return Config(
        data=Text(**({"context": 8} | (text or {}))),
        model=LanguageModel(decoder=decoder),
        training=Training(**(options | {"optimizer": Optimizer(learning_rate=0.01)} | training)),
    )


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(4, 12, count)


# --- the objective ---------------------------------------------------------------------------------------------------


def test_chunks_with_a_carried_state_lose_as_much_as_the_whole_stream():
    ids, model = tokens(61), build()
    streams = Streams(ids, batch_size=3, length=7, seed=0)
    objective = TextObjective(Training(max_steps=1, label_smoothing=0.0), device=CPU, is_carried=True)
    parts = [objective.loss_sum(model, streams.batch(0, place), step=1).item() for place in range(len(streams))]
    whole = Streams(ids, batch_size=3, length=20, seed=0).batch(0, 0)
    assert whole.inputs.shape == (3, 20)
    expected = objective.loss_sum(model, whole, step=1).item()
    assert sum(parts) == pytest.approx(expected, rel=1e-5)
    forgotten = TextObjective(Training(max_steps=1, label_smoothing=0.0), device=CPU, is_carried=False)
    alone = [
        forgotten.loss_sum(model, text_batch(ids, streams.batch(0, place).rows, 6), step=1).item() for place in range(3)
    ]
    assert sum(alone) != pytest.approx(sum(parts[:3]), rel=1e-5)


def test_the_graph_ends_at_the_edge_of_a_chunk():
    model, streams = build(), Streams(tokens(61), batch_size=3, length=7, seed=0)
    objective = TextObjective(Training(max_steps=1), device=CPU, is_carried=True)
    objective.loss_sum(model, streams.batch(0, 0), step=1).backward()
    assert all(not leaf.requires_grad for leaf in leaves(objective._state))
    objective.loss_sum(model, streams.batch(0, 1), step=2).backward()  # through the first chunk it would raise


def test_a_step_costs_the_same_however_many_came_before():
    model, streams = build(), Streams(tokens(400), batch_size=2, length=5, seed=0)
    objective = TextObjective(Training(max_steps=1), device=CPU, is_carried=True)
    losses = [objective.loss_sum(model, streams.batch(0, place), step=1 + place) for place in range(len(streams) - 1)]
    sizes = [num_nodes(loss) for loss in losses]
    assert sizes[0] > 10
    assert set(sizes[1:]) == {sizes[1]}


def num_nodes(loss):
    """Operations that a backward pass from here would go through."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return len(seen)


def test_the_first_chunk_of_an_epoch_begins_anew():
    model, streams = build(), Streams(tokens(61), batch_size=3, length=7, seed=0)
    objective = TextObjective(Training(max_steps=1), device=CPU, is_carried=True)
    first = objective.loss_sum(model, streams.batch(0, 0), step=1).item()
    objective.loss_sum(model, streams.batch(0, 1), step=2)
    assert objective.loss_sum(model, streams.batch(1, 0), step=3).item() == first


def test_a_row_that_forgets_begins_anew_and_the_others_go_on():
    ids, model = tokens(61), build()
    objective = TextObjective(Training(max_steps=1, label_smoothing=0.0), device=CPU, is_carried=True)
    second = np.array([10, 40])

    def loss(rows, *, is_continued, forgets=None):
        if is_continued:
            objective.loss_sum(model, text_batch(ids, rows - 10, 10), step=1)
        batch = text_batch(ids, rows, 10, is_continued=is_continued, forgets=forgets)
        return objective.loss_sum(model, batch, step=2).item()

    mixed = loss(second, is_continued=True, forgets=np.array([True, False]))
    apart = loss(second[:1], is_continued=False) + loss(second[1:], is_continued=True)
    assert mixed == pytest.approx(apart, rel=1e-5)
    assert mixed != pytest.approx(loss(second, is_continued=True), rel=1e-4)


def test_a_document_knows_nothing_of_the_one_before():
    model = build()
    objective = TextObjective(Training(max_steps=1, label_smoothing=0.0), device=CPU, is_carried=True)
    documents = [[BOS, 5, 6, 7, EOS], [BOS, 8, 9, 10, 11, EOS]]

    def loss(*parts):
        ids = np.array([id_ for part in parts for id_ in part])
        return objective.loss_sum(model, Streams(ids, batch_size=1, length=99, seed=0).batch(0, 0), step=1).item()

    assert loss(*documents) == pytest.approx(sum(map(loss, documents)), rel=1e-5)


@pytest.mark.parametrize("decoder", [RECURRENT, WINDOWED])
def test_steps_are_a_function_of_the_settings_alone(decoder):
    ids = tokens(500)
    steps, again = (TextSteps(ids, config(decoder, accumulate=2)) for _ in range(2))
    assert steps.epoch_of(steps.steps_per_epoch) == 1
    assert steps.epoch_of(steps.steps_per_epoch + 1) == 2
    for step in (1, steps.steps_per_epoch, steps.steps_per_epoch + 1):
        ours, theirs = steps.batches_of(step), again.batches_of(step)
        assert [batch.rows.tolist() for batch in ours] == [batch.rows.tolist() for batch in theirs]
        assert all(batch.inputs.shape[0] <= 8 for batch in ours)
    seen = sum(batch.num_labels for step in range(steps.steps_per_epoch) for batch in steps.batches_of(step + 1))
    assert seen == steps.num_examples == round(steps.tokens_per_step * steps.steps_per_epoch)


def test_rows_of_several_processes_are_all_rows():
    batch = text_batch(np.array([BOS, 5, 6, EOS] * 9), np.arange(5) * 4, 4)
    parts = [batch.part(rank, 2) for rank in range(2)]
    assert [part.rows.tolist() for part in parts] == [[0, 8, 16], [4, 12]]
    assert parts[1].reset.shape == parts[1].inputs.shape == (2, 4)
    assert sum(part.num_labels for part in parts) == batch.num_labels


# --- the held-out text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", [RECURRENT, WINDOWED])
def test_the_held_out_text_is_scored_whole(decoder):
    ids, model = tokens(30), build(decoder)
    context = Context(None if decoder is RECURRENT else 29)
    score = TextDev(ids, context=context, num_characters=30, vocabulary_size=12, device=CPU).score(model)
    assert score.num_labels == 29
    assert model.training
    objective = TextObjective(Training(max_steps=1, label_smoothing=0.0), device=CPU, is_carried=False)
    expected = objective.loss_sum(model.eval(), text_batch(ids, np.array([0]), 29), step=1).item() / 29
    assert score.loss == score.value == pytest.approx(expected, rel=1e-5)


# --- whole runs ------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a training as a kill would."""


def kill_after(step):
    def listen(event):
        if isinstance(event, StepTaken) and event.step == step:
            raise Killed

    return listen


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the cat sat on the mat\nand the dog sat on the log\n" * 40, encoding="utf-8")
    return path


@pytest.mark.parametrize("decoder", [RECURRENT.model_copy(update={"dropout": 0.3}), WINDOWED])
def test_a_killed_run_goes_on_exactly_in_the_middle_of_an_epoch(tmp_path, text_file, decoder):
    settings = config(decoder, max_steps=9, save_every=2, evaluate_every=100)
    unrolled.train(text_file, config=settings, out=tmp_path / "whole")
    with pytest.raises(Killed):
        unrolled.train(text_file, config=settings, out=tmp_path / "killed", listeners=[kill_after(6)])
    outcome = unrolled.train(resume=tmp_path / "killed")
    assert outcome.step == 9
    assert len(list((tmp_path / ".tokens").iterdir())) == 1  # stored once, for both runs and the resumed one
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]


def test_the_state_that_is_carried_is_part_of_what_is_saved(tmp_path, text_file):
    """Without it the run above would go on from zeros: a planted loss of the state changes the result."""
    settings = config(max_steps=9, save_every=2, evaluate_every=100)
    unrolled.train(text_file, config=settings, out=tmp_path / "whole")
    with pytest.raises(Killed):
        unrolled.train(text_file, config=settings, out=tmp_path / "killed", listeners=[kill_after(6)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextObjective, "_before", lambda self, model, batch: model.initial_state(None, len(batch.inputs)))
        unrolled.train(resume=tmp_path / "killed")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] != weights[1]


def test_a_training_on_sampled_classes_learns_and_is_resumed_exactly(tmp_path):
    words = [f"w{number}" for number in range(150)]
    follow = np.random.default_rng(1).permutation(150)
    at, text = 0, []
    for _ in range(3000):
        text.append(words[at])
        at = int(follow[at]) if len(text) % 7 else len(text) % 150
    path = tmp_path / "words.txt"
    path.write_text(" ".join(text) + "\n", encoding="utf-8")
    training = {"max_steps": 120, "save_every": 50, "evaluate_every": 120, "softmax_sample": 100}
    decoder = RecurrentLanguageDecoder(embedding_dim=32, hidden_size=32, dropout=0.0)
    settings = config(decoder, text={"units": "word"}, optimizer=Optimizer(learning_rate=0.03), **training)
    losses = []
    listener = lambda event: losses.append(event.loss) if isinstance(event, Evaluated) else None  # noqa: E731
    unrolled.train(path, config=settings, out=tmp_path / "whole", listeners=[listener])
    assert losses[-1] < 0.5 * np.log(150)  # over all classes
    with pytest.raises(Killed):
        unrolled.train(path, config=settings, out=tmp_path / "killed", listeners=[kill_after(75)])
    unrolled.train(resume=tmp_path / "killed")
    exact = settings.model_copy(update={"training": settings.training.model_copy(update={"softmax_sample": None})})
    unrolled.train(path, config=exact, out=tmp_path / "exact")
    whole, killed, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed", "exact")
    )
    assert whole == killed != other


def test_a_carried_state_is_of_one_process(tmp_path, text_file):
    """Several processes carry the rows of each, of which one alone is saved."""
    for name, decoder in (("streamed", RECURRENT), ("windowed", WINDOWED)):
        unrolled.train(text_file, config=config(decoder, max_steps=2), out=tmp_path / name)
        run = Run.open(tmp_path / name, for_writing=True)
        run.write_environment(dataclasses.replace(run.environment(), processes=2))
    with pytest.raises(
        ConfigError, match=r"saved for one process, got 2 before and 1 now; resume .* or start a new run"
    ):
        unrolled.train(resume=tmp_path / "streamed")
    assert unrolled.train(resume=tmp_path / "windowed").step == 2


def test_a_changed_text_is_refused_on_resume_also_in_a_folder(tmp_path, text_file):
    folder = tmp_path / "texts"
    folder.mkdir()
    text_file.rename(folder / "a.txt")
    settings = config(max_steps=4, save_every=1)
    with pytest.raises(Killed):
        unrolled.train(folder, config=settings, out=tmp_path / "run", listeners=[kill_after(2)])
    (folder / "b.txt").write_text("more\n", encoding="utf-8")
    with pytest.raises(DataError, match="texts: changed since the run started"):
        unrolled.train(resume=tmp_path / "run")
    (folder / "b.txt").unlink()
    assert unrolled.train(resume=tmp_path / "run").step == 4


def test_the_held_out_end_is_what_evaluation_reports(tmp_path, text_file):
    events = []
    settings = config(max_steps=6, evaluate_every=6)
    unrolled.train(text_file, config=settings, out=tmp_path / "run", listeners=[events.append])
    (evaluated,) = (event for event in events if isinstance(event, Evaluated))
    text = text_file.read_text(encoding="utf-8")
    (tmp_path / "valid.txt").write_text(text[int(0.9 * len(text)) :], encoding="utf-8")
    report = unrolled.load(tmp_path / "run").evaluate(tmp_path / "valid.txt")
    assert (report.num_labels, evaluated.num_labels) == (200, 200)
    assert report.loss == pytest.approx(evaluated.loss, rel=1e-6)


def test_a_time_budget_becomes_steps(tmp_path, text_file):
    outcome = unrolled.train(text_file, config=config(max_steps=None, minutes=0.05), out=tmp_path / "run")
    assert outcome.step > 10
    assert outcome.seconds < 8
