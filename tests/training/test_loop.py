import dataclasses
import math

import numpy as np
import pytest
import torch

from unrolled.errors import DivergenceError
from unrolled.text import Examples, Ragged
from unrolled.training import DevSet, Epochs, PairObjective, Score, Trainer
from unrolled.training.events import Evaluated, StepSkipped, StepTaken, TrainingEnded, TrainingStarted, Warned

CPU = torch.device("cpu")


class Recorder(list):
    def __call__(self, event):
        self.append(event)

    def of(self, kind):
        return [event for event in self if type(event) is kind]


class FakeDev:
    """Answers given values, one a call."""

    def __init__(self, *values):
        self.values = list(values)

    def score(self, model, *, should_stop=lambda: False):
        value = self.values.pop(0)
        return value if isinstance(value, Score) else Score(loss=value, value=value, num_labels=1)


def make_trainer(model, examples, settings, **options):
    objective = PairObjective(settings, device=CPU)
    return Trainer(model, Epochs(examples, settings), objective, settings, **options)


def fit(model, examples, settings, **options):
    seen = Recorder()
    outcome = make_trainer(model, examples, settings, listeners=[seen], **options).fit()
    return outcome, seen


def dev_set(examples, settings):
    return DevSet(examples, settings, vocabulary_size=9, device=CPU)


def test_events_of_a_short_run(build, make_examples, settings):
    rules = settings(max_steps=7, evaluate_every=3)
    examples = make_examples(40)
    outcome, seen = fit(build(), examples, rules, dev=dev_set(make_examples(9, seed=1), rules))
    (started,), (ended,) = seen.of(TrainingStarted), seen.of(TrainingEnded)
    assert (started.step, started.total_steps, started.num_pairs) == (0, 7, 40)
    steps = seen.of(StepTaken)
    assert [event.step for event in steps] == list(range(1, 8))
    assert [event.step for event in seen.of(Evaluated)] == [3, 6, 7]
    assert [event.epoch for event in steps] == [1 + (event.step - 1) // started.steps_per_epoch for event in steps]
    assert steps[0].learning_rate == pytest.approx(0.01 / 5)
    assert all(math.isfinite(event.loss) and event.gradient_norm > 0 for event in steps)
    epoch = steps[: started.steps_per_epoch]
    assert sum(event.num_labels for event in epoch) == examples.target.values.size
    assert sum(event.num_tokens for event in epoch) == examples.target.values.size + examples.source.values.size
    assert seen[0] is started
    assert seen[-1] is ended
    assert (outcome.reason, outcome.step, outcome.exit_code, outcome.resume_command) == ("completed", 7, 0, None)
    assert outcome.best_value == min(event.value for event in seen.of(Evaluated))


def test_once_an_epoch_by_default(build, make_examples, settings):
    rules = settings(max_steps=None, max_epochs=3, batch_tokens=100)
    _, seen = fit(build(), make_examples(20), rules, dev=FakeDev(3.0, 2.0, 1.0))
    steps = seen.of(TrainingStarted)[0].steps_per_epoch
    assert steps > 1
    assert [event.step for event in seen.of(Evaluated)] == [steps, 2 * steps, 3 * steps]


def test_each_example_once_an_epoch(make_examples, settings):
    epochs = Epochs(make_examples(50), settings(accumulate=3, batch_tokens=60))
    orders = []
    for epoch in range(2):
        steps = range(1 + epoch * epochs.steps_per_epoch, 1 + (epoch + 1) * epochs.steps_per_epoch)
        batches = [batch for step in steps for batch in epochs.batches_of(step)]
        assert all(epochs.epoch_of(step) == epoch + 1 for step in steps)
        orders.append(np.concatenate([batch.rows for batch in batches]))
        assert sorted(orders[-1]) == list(range(50))
    assert not np.array_equal(*orders)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(orders[0], np.arange(50))


def test_the_whole_epoch_loss_does_not_depend_on_accumulation(build, make_examples, settings):
    """At rate (almost) 0 without dropout, losses weighted by labels are those of the whole epoch."""
    examples, losses = make_examples(30), []
    for accumulate in (1, 2, 7):
        rules = settings(max_steps=None, max_epochs=1, accumulate=accumulate, batch_tokens=60)
        rules = rules.model_copy(update={"optimizer": rules.optimizer.model_copy(update={"learning_rate": 1e-12})})
        steps = fit(build(dropout=0.0), examples, rules)[1].of(StepTaken)
        losses.append(sum(event.loss * event.num_labels for event in steps) / examples.target.values.size)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def final_weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_one_seed_one_result(build, make_examples, settings):
    results, losses = [], []
    for seed in (3, 3, 4):
        model = build()
        torch.rand(5)  # what was drawn before does not matter
        _, seen = fit(model, make_examples(30), settings(seed=seed, max_steps=9))
        results.append(final_weights(model))
        losses.append([event.loss for event in seen.of(StepTaken)])
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_the_global_generator_is_left_alone(build, make_examples, settings):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    fit(build(), make_examples(10), settings(max_steps=2))
    assert torch.equal(torch.rand(3), expected)


def test_patience(build, make_examples, settings):
    rules = settings(max_steps=100, evaluate_every=1, patience=2)
    outcome, seen = fit(build(), make_examples(10), rules, dev=FakeDev(3.0, 2.0, 2.5, 2.0))
    assert (outcome.reason, outcome.step, outcome.best_step, outcome.best_value) == ("patience", 4, 2, 2.0)
    assert [event.is_best for event in seen.of(Evaluated)] == [True, True, False, False]


def test_the_model_is_left_with_the_best_weights(build, make_examples, settings):
    kept = {}

    def keep(event):
        if isinstance(event, Evaluated):
            kept[event.step] = final_weights(model)

    model = build()
    rules = settings(max_steps=3, evaluate_every=1)
    make_trainer(model, make_examples(10), rules, dev=FakeDev(3.0, 1.0, 2.0), listeners=[keep]).fit()
    assert all(torch.equal(value, kept[2][name]) for name, value in final_weights(model).items())
    assert not torch.equal(kept[2]["decoder.output.weight"], kept[3]["decoder.output.weight"])


@pytest.mark.parametrize(("value", "is_taken"), [(0.5, True), (1.0, True), (1.5, False), (math.nan, False)])
def test_an_average_is_taken_where_it_is_no_worse(build, make_examples, settings, value, is_taken):
    kept = {}

    def keep(event):
        if isinstance(event, Evaluated):
            kept[event.step, event.weights] = final_weights(model)
            seen.append(event)

    seen, model = [], build()
    rules = settings(max_steps=3, evaluate_every=1, average="last", average_count=2)
    dev = FakeDev(3.0, 1.0, 2.0, value)
    outcome = make_trainer(model, make_examples(10), rules, dev=dev, listeners=[keep]).fit()
    mean = {name: (kept[2, "current"][name] + kept[3, "current"][name]) / 2 for name in final_weights(model)}
    expected = mean if is_taken else kept[2, "current"]
    for name, found in final_weights(model).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-6, atol=1e-8)
    assert outcome.best_value == (value if is_taken else 1.0)
    assert (seen[-1].weights, seen[-1].is_best) == ("average", is_taken)


def test_without_a_dev_set_the_last_weights_are_the_result(build, make_examples, settings):
    outcome, seen = fit(build(), make_examples(10), settings(max_steps=3))
    assert seen.of(Evaluated) == []
    assert (outcome.best_step, outcome.best_value) == (None, None)


# --- skipped steps ---


def poisoned(model, steps):
    """From these steps on the gradient of one weight is infinite."""
    calls = []

    def poison(gradient):
        calls.append(1)
        return torch.full_like(gradient, math.inf) if len(calls) in steps else gradient

    model.get_parameter("decoder.output.bias").register_hook(poison)
    return model


def test_a_step_with_an_infinite_gradient_is_skipped_counted_and_named(build, make_examples, settings):
    examples = make_examples(12)
    lines = np.arange(12) * 10 + 1
    outcome, seen = fit(poisoned(build(), {2, 4}), examples, settings(max_steps=5, batch_tokens=1000), lines=lines)
    first, second = seen.of(StepSkipped)
    assert (first.step, first.parameter, first.in_a_row, first.total) == (2, "decoder.output.bias", 1, 1)
    assert (second.step, second.in_a_row, second.total) == (4, 1, 2)
    assert first.lines == tuple(lines.tolist())
    assert [event.step for event in seen.of(StepTaken)] == [1, 3, 5]
    assert outcome.step == 5


def test_a_few_in_a_row_are_a_divergence(build, make_examples, settings):
    model = poisoned(build(), set(range(3, 100)))
    seen = Recorder()
    with pytest.raises(DivergenceError, match=r"step 7: gradients not finite in 5 steps in a row, first in decoder"):
        make_trainer(model, make_examples(12), settings(max_steps=50), listeners=[seen]).fit()
    assert len(seen.of(StepSkipped)) == 5
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def without_labels(examples, rows):
    """The same examples with no label at all in some rows."""
    targets = [np.zeros(3, np.int32) if row in rows else examples.target[row] for row in range(len(examples))]
    return Examples(examples.source, Ragged.from_rows(targets), examples.rows)


def test_a_step_without_labels_is_no_step(build, make_examples, settings):
    examples = without_labels(make_examples(4), {1})
    model, rules = build(), settings(max_steps=None, max_epochs=2, max_batch_size=1)
    outcome, seen = fit(model, examples, rules)
    (skipped,) = seen.of(StepSkipped)  # named once, although it came twice
    assert (skipped.lines, skipped.parameter) == ((1,), None)
    assert "no label" in skipped.reason
    assert len(seen.of(StepTaken)) == 6
    assert outcome.step == 8
    assert all(math.isfinite(event.loss) for event in seen.of(StepTaken))


def test_no_labels_anywhere_changes_nothing(build, make_examples, settings):
    model = build()
    before = final_weights(model)
    fit(model, without_labels(make_examples(4), range(4)), settings(max_steps=3))
    assert all(torch.equal(value, before[name]) for name, value in final_weights(model).items())


def test_a_dev_set_without_labels_has_no_value(build, make_examples, settings):
    rules = settings(max_steps=2, evaluate_every=1)
    dev = dev_set(without_labels(make_examples(3), range(3)), rules)
    outcome, seen = fit(build(), make_examples(10), rules, dev=dev)
    for event in seen.of(Evaluated):
        assert (event.loss, event.value, event.is_best, event.num_labels) == (None, None, False, 0)
    assert outcome.best_value is None
    assert "no labels to score" in seen.of(Warned)[0].message


# --- dev scores ---


def test_dev_loss_is_the_mean_over_labels_without_smoothing_or_dropout(build, make_examples, settings):
    model, examples = build(), make_examples(9)
    model.train()
    score = dev_set(examples, settings(label_smoothing=0.3)).score(model)
    assert model.training
    from unrolled.models.engine import TorchEngine

    rows = range(len(examples))
    log_probs = TorchEngine(model, vocabulary_size=9).log_probs(
        [examples.source[row] for row in rows], [examples.target[row] for row in rows]
    )
    assert score.loss == score.value == pytest.approx(-np.mean(np.concatenate(log_probs)), rel=1e-5)
    assert score.num_labels == examples.target.values.size


@pytest.mark.parametrize(("metric", "expected"), [("error_rate", 0.5), ("symbol_error_rate", 2 / 4)])
def test_decoded_metrics(build, settings, metric, expected, monkeypatch):
    """Two sources; one has two references of which one is right, the other is wrong in two of three symbols."""
    from unrolled.decoding import Hypothesis
    from unrolled.training import evaluation

    answers = {(5, 2): [6], (7, 2): [8, 8, 4]}

    def fake(engine, sources, **options):
        return [
            Hypothesis(ids=np.array(answers[tuple(source.tolist())]), log_prob=0.0, score=0.0, is_finished=True)
            for source in sources
        ]

    monkeypatch.setattr(evaluation, "greedy", fake)
    examples = Examples(
        Ragged.from_rows([[5, 2], [7, 2], [5, 2]]), Ragged.from_rows([[4, 4, 2], [8, 5, 5, 2], [6, 2]]), np.arange(3)
    )
    assert dev_set(examples, settings(dev_metric=metric)).score(build()).value == pytest.approx(expected)


def test_an_unknown_symbol_in_a_reference_is_never_right(build, settings, monkeypatch):
    from unrolled.decoding import Hypothesis
    from unrolled.training import evaluation

    unknown = Hypothesis(ids=np.array([3]), log_prob=0.0, score=0.0, is_finished=True)
    monkeypatch.setattr(evaluation, "greedy", lambda engine, sources, **options: [unknown for _ in sources])
    examples = Examples(Ragged.from_rows([[5, 2]]), Ragged.from_rows([[3, 2]]), np.arange(1))
    assert dev_set(examples, settings(dev_metric="error_rate")).score(build()).value == 1.0


def test_real_decoding_is_used(build, make_examples, settings):
    score = dev_set(make_examples(5), settings(dev_metric="error_rate")).score(build())
    assert score.value == 1.0
    assert score.loss > 1


def test_a_score_is_given_up_when_asked(build, make_examples, settings):
    dev = dev_set(make_examples(5), settings(dev_metric="error_rate"))
    assert dev.score(build(), should_stop=lambda: True) is None
    asked = []
    assert dev.score(build(), should_stop=lambda: len(asked) > 0 or asked.append(1)) is None


# --- time ---


@pytest.fixture
def ticking(monkeypatch):
    """Makes a step take 0.1 seconds, and 1 second after some steps; an evaluation as many seconds as told."""
    from unrolled.training import Stepper
    from unrolled.training.clock import Clock

    def make(*, evaluation=0.0, steps_until_slower=10**6):
        now, launched = [0.0], []
        launch, score = Stepper.launch, FakeDev.score

        def slow_launch(stepper, batches, factor, *, step):
            launched.append(1)
            now[0] += 0.1 if len(launched) <= steps_until_slower else 1.0
            return launch(stepper, batches, factor, step=step)

        def slow_score(dev, model, **options):
            now[0] += evaluation
            return score(dev, model, **options)

        monkeypatch.setattr(Stepper, "launch", slow_launch)
        monkeypatch.setattr(FakeDev, "score", slow_score)
        monkeypatch.setattr(Clock, "seconds", property(lambda clock: now[0]))

    return make


def test_a_time_budget_is_measured_and_ends_the_schedule(build, make_examples, settings, ticking):
    from unrolled.training.events import Planned

    ticking(evaluation=0.5)
    rules = settings(max_steps=None, minutes=0.5, schedule={"warmup_steps": 3}, evaluate_every=20, batch_tokens=5000)
    outcome, seen = fit(build(), make_examples(60), rules, dev=FakeDev(*[1.0] * 99))
    (plan,) = seen.of(Planned)
    assert plan.seconds_per_step == pytest.approx(0.1)
    assert plan.seconds_per_evaluation == pytest.approx(0.5)
    assert outcome.reason == "completed"
    assert outcome.step == plan.total_steps > plan.step
    assert 29 < outcome.seconds < 31
    last = seen.of(StepTaken)[-1]
    after_warm_up = plan.total_steps - 3
    factor = (1 + math.cos(math.pi * after_warm_up / (after_warm_up + 1))) / 2
    assert last.learning_rate == pytest.approx(0.01 * factor)
    assert [event.learning_rate for event in seen.of(StepTaken)[3 : plan.step]] == [0.01] * (plan.step - 3)
    lefts = [event.seconds_left for event in seen.of(StepTaken)]
    assert lefts[0] == pytest.approx(29.9)
    assert lefts[-1] == 0


def test_a_time_budget_spends_little_of_it_on_evaluations(build, make_examples, settings, ticking):
    ticking(evaluation=0.5)
    rules = settings(max_steps=None, minutes=1, batch_tokens=500)
    outcome, seen = fit(build(), make_examples(60), rules, dev=FakeDev(*[1.0] * 99))
    steps_per_epoch = seen.of(TrainingStarted)[0].steps_per_epoch
    measured, *evaluated, _last = [event.step for event in seen.of(Evaluated)]
    assert measured == 29  # 5 to warm up, then 4 % of a minute
    assert len(evaluated) > 2
    (gap,) = set(np.diff([0, *evaluated][1:]).tolist())
    assert gap % steps_per_epoch == 0
    assert 0.5 / (gap * 0.1) <= 0.05 < 0.5 / ((gap - steps_per_epoch) * 0.1)
    assert 58 < outcome.seconds < 62


def test_other_limits_hold_beside_a_time_budget(build, make_examples, settings):
    outcome, _ = fit(build(), make_examples(20), settings(max_steps=4, minutes=5))
    assert (outcome.reason, outcome.step) == ("completed", 4)


def test_a_machine_that_became_slower_is_planned_for_again(build, make_examples, settings, ticking):
    from unrolled.training.events import Planned

    ticking(steps_until_slower=100)
    outcome, seen = fit(build(), make_examples(20), settings(max_steps=None, minutes=3))
    first, *later = seen.of(Planned)
    assert first.total_steps == pytest.approx(1800, rel=0.01)
    assert 1 <= len(later) <= 3
    assert (outcome.reason, outcome.step) == ("completed", later[-1].total_steps)
    assert 165 < outcome.seconds < 195


def test_a_steady_machine_is_planned_for_once(build, make_examples, settings, ticking):
    from unrolled.training.events import Planned

    ticking()
    outcome, seen = fit(build(), make_examples(20), settings(max_steps=None, minutes=1))
    (plan,) = seen.of(Planned)
    assert (outcome.reason, outcome.step) == ("completed", plan.total_steps)


def test_a_machine_that_became_slower_ends_late_but_ends(build, make_examples, settings, ticking):
    ticking(steps_until_slower=70)  # after the last look at the plan
    outcome, seen = fit(build(), make_examples(20), settings(max_steps=None, minutes=10 / 60))
    assert outcome.reason == "over_budget"
    assert outcome.seconds == pytest.approx(12)  # the first step that ends beyond 11.5
    assert "slower" in seen.of(Warned)[0].message


def test_events_are_values():
    assert dataclasses.is_dataclass(StepTaken)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Warned(1, "x").step = 2
