"""Steps, loss and held-out score of models of vectors."""

import math

import numpy as np
import pytest
import torch

from unrolled import config, models
from unrolled.parameters import Sizes, initialise, inventory
from unrolled.text import Pieces
from unrolled.text.tasks import draw_vectors, fixed_vectors
from unrolled.training.endless import Endless
from unrolled.training.epochs import Epochs
from unrolled.training.frames import FrameDev, FrameObjective, held_out

CPU = torch.device("cpu")
TASK = config.AddingTask(length=5, epoch_size=100, dev_size=300)


def built(head, sizes):
    settings = config.Frames(decoder=config.FrameDecoder(hidden_size=4, dropout=0.5), head=head)
    return models.build(settings, sizes, initialise(inventory(settings, sizes), 0))


@pytest.fixture(scope="module")
def pieces():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 30)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Pieces("walks.json", rng.random((offsets[-1], 3)) < 0.4, offsets, "")


def test_the_loss_is_a_sum_over_labels_and_the_score_a_mean(pieces):
    model = built("bernoulli", Sizes(3, 0, 3))
    with torch.no_grad():
        model.decoder.output.weight.zero_()  # every key sounds or not with one half, whatever was heard
    objective = FrameObjective("bernoulli", config.Training(max_steps=1), device=CPU)
    batch = pieces.batch(np.arange(30))
    loss = objective.loss_sum(model, batch, step=1)
    assert loss.item() == pytest.approx(3 * math.log(2) * pieces.num_tokens, rel=1e-6)
    loss.backward()
    assert model.decoder.output.bias.grad.abs().sum() > 0
    score = FrameDev(held_out(pieces, None), "bernoulli", device=CPU).score(model)
    assert score.loss == score.value == pytest.approx(3 * math.log(2), rel=1e-6)
    assert score.num_labels == pieces.num_tokens


def test_scoring_drops_nothing_out_and_can_be_given_up(pieces):
    model = built("bernoulli", Sizes(3, 0, 3))
    dev = FrameDev(held_out(pieces, None), "bernoulli", device=CPU)
    assert dev.score(model).loss == dev.score(model).loss
    assert model.training
    assert dev.score(model.eval(), should_stop=lambda: True) is None
    assert not model.training


def test_bfloat16_is_near_and_not_equal(pieces):
    model = built("bernoulli", Sizes(3, 0, 3)).eval()
    whole, half = (
        FrameObjective("bernoulli", config.Training(max_steps=1, precision=precision), device=CPU).loss_sum(
            model, pieces.batch(np.arange(30)), step=1
        )
        for precision in ("float32", "bfloat16")
    )
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(whole.item(), rel=1e-2)
    assert half.item() != whole.item()


def test_an_epoch_of_pieces_has_each_once(pieces):
    steps = Epochs(pieces, config.Training(max_epochs=2, max_batch_size=4, batch_tokens=1000))
    assert (steps.num_examples, steps.steps_per_epoch) == (30, 8)
    first, second = (
        [batch for step in range(8 * epoch + 1, 8 * epoch + 9) for batch in steps.batches_of(step)] for epoch in (0, 1)
    )
    for epoch in (first, second):
        assert sorted(np.concatenate([batch.rows for batch in epoch]).tolist()) == [*range(30)]
    assert [batch.rows.tolist() for batch in first] != [batch.rows.tolist() for batch in second]
    assert steps.tokens_per_step == pytest.approx(sum(batch.num_tokens for batch in first) / 8)
    least = Epochs(pieces, config.Training(max_epochs=1, max_batch_size=99, batch_tokens=16))
    assert max(len(batch.rows) * batch.inputs.shape[1] for batch in (least.batches_of(s)[0] for s in range(1, 9))) <= 16


def test_held_out_sequences_are_all_there_and_always_the_same(pieces):
    rows = np.concatenate([batch.rows for batch in held_out(pieces, None)])
    assert sorted(rows.tolist()) == [*range(30)]
    batches = held_out(None, TASK)
    np.testing.assert_array_equal(np.concatenate([batch.rows for batch in batches]), np.arange(300))
    assert max(len(batch.rows) for batch in batches) <= 256
    np.testing.assert_array_equal(
        np.concatenate([batch.inputs for batch in batches]), fixed_vectors(TASK, np.arange(300), "dev").inputs
    )


def test_endless_sequences():
    steps = Endless.vectors(
        TASK, config.Training(max_steps=9, max_batch_size=64, batch_tokens=100, accumulate=2, seed=3)
    )
    first, second = steps.batches_of(2)
    assert first.rows.tolist() == [*range(40, 60)]  # 20 sequences of 5 in a batch
    np.testing.assert_array_equal(second.inputs, draw_vectors(TASK, np.arange(60, 80), seed=3).inputs)
    assert (steps.num_examples, steps.steps_per_epoch, steps.tokens_per_step) == (100, 3, 200.0)
    assert [steps.epoch_of(step) for step in (0, 3, 4)] == [1, 1, 2]
