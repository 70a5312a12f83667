"""Plans, processes and tables of sweeps."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from unrolled.errors import CheckpointError, ConfigError
from unrolled.settings import resolve
from unrolled.sweeps import Result, Sweep, read_sweep, run_trials, running, summary, trials_of
from unrolled.sweeps.table import half_width

RATE = "training.optimizer.learning_rate"
FILE = """
train = "words.tsv"
dev = "dev.tsv"
preset = "tiny"
seeds = [1, 2]

[settings]
training.max_steps = 3
data.target.units = "space"

[vary]
model.encoder.hidden_size = [16, 32]
training.optimizer.learning_rate = [0.01, 0.02]
"""


@pytest.fixture
def write(tmp_path):
    def write(text=FILE):
        (tmp_path / "sweep.toml").write_text(text, encoding="utf-8")
        return tmp_path / "sweep.toml"

    return write


def sweep_of(rates, **settings):
    return Sweep.model_validate({"train": "words.tsv", "preset": "tiny", "vary": {RATE: rates}, **settings})


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_grid_is_all_combinations_with_all_seeds(write):
    trials = trials_of(read_sweep(write()))
    assert len(trials) == len({trial.name for trial in trials}) == 8
    assert [(*trial.choice.values(), trial.seed) for trial in trials[:3]] == [
        (16, 0.01, 1),
        (16, 0.01, 2),
        (16, 0.02, 1),
    ]
    assert len({trial.setting for trial in trials}) == 4
    first = trials[0]
    assert (first.config.model.encoder.hidden_size, first.config.training.max_steps, first.config.training.seed) == (
        16,
        3,
        1,
    )
    assert str(first) == f"model.encoder.hidden_size=16 {RATE}=0.01 seed 1"


def test_the_arguments_are_those_of_train(write):
    for trial in trials_of(read_sweep(write())):
        file, *rest = trial.arguments
        overrides = [argument for argument in rest if not argument.startswith("--")]
        assert file == "words.tsv"
        assert ("--dev=dev.tsv" in rest, "--preset=tiny" in rest, rest[-1]) == (True, True, f"--seed={trial.seed}")
        from unrolled import presets

        assert resolve(presets.tiny(), overrides=overrides, flags={"training.seed": trial.seed}) == trial.config


def test_random_search_draws_within_its_ranges_and_begins_alike():
    ranges = {
        RATE: {"low": 1e-4, "high": 1e-1, "scale": "log"},
        "model.encoder.hidden_size": {"low": 3, "high": 6},
        "model.encoder.cell": ["lstm", "gru"],
    }
    some = Sweep.model_validate({"train": "w", "search": "random", "num_settings": 40, "vary": ranges})
    few = some.model_copy(update={"num_settings": 5})
    choices = list(some.choices())
    assert choices[:5] == list(few.choices())
    assert len({json.dumps(choice) for choice in choices}) == 40
    assert {choice["model.encoder.hidden_size"] for choice in choices} == {3, 4, 5, 6}
    rates = [choice[RATE] for choice in choices]
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    assert 0.3 < sum(rate < 10**-2.5 for rate in rates) / 40 < 0.7
    assert choices != list(some.model_copy(update={"draw_seed": 1}).choices())


def test_random_search_ends_where_nothing_new_can_be_drawn():
    sweep = sweep_of([0.1, 0.2], search="random", num_settings=9)
    assert sorted(choice[RATE] for choice in sweep.choices()) == [0.1, 0.2]


def test_words_and_lists_survive_the_command_line():
    vary = {"model.encoder.cell": ["gru", "lstm"], "data.columns": [["source", "target"], ["target", "source"]]}
    sweep = Sweep.model_validate({"source": "a", "target": "b", "vary": vary, "settings": {"data.encoding": "1"}})
    trials = trials_of(sweep)
    assert {trial.config.data.columns for trial in trials} == {("source", "target"), ("target", "source")}
    assert {trial.config.data.encoding for trial in trials} == {"1"}
    assert "model.encoder.cell=gru" in trials[0].arguments
    assert trials[0].arguments[:2] == ("--source=a", "--target=b")


def test_whole_types_can_be_varied():
    encoders = [{"type": "transformer", "d_model": 32}, {"type": "recurrent", "cell": "gru"}]
    sweep = Sweep.model_validate({"train": "a", "preset": "tiny", "vary": {"model.encoder": encoders}})
    first, second = trials_of(sweep)
    assert (first.config.model.encoder.type, first.config.model.encoder.d_model) == ("transformer", 32)
    assert (second.config.model.encoder.type, second.config.model.encoder.cell) == ("recurrent", "gru")


def test_choices_that_come_to_the_same_are_refused():
    encoders = [{"type": "recurrent"}, {"cell": "gru"}]
    sweep = Sweep.model_validate({"train": "a", "preset": "tiny", "vary": {"model.encoder": encoders}})
    with pytest.raises(
        ConfigError, match=r"is the same training as model.encoder=\{type = \"recurrent\"\} seed 0; leave"
    ):
        trials_of(sweep)


def test_other_settings_or_other_data_are_other_trials(tmp_path):
    (tmp_path / "base.toml").write_text("training.max_steps = 5")
    (tmp_path / "words.tsv").write_text("a\tb\n")
    names = {"train": str(tmp_path / "words.tsv"), "config": str(tmp_path / "base.toml"), "seeds": [3]}

    def name(**settings):
        (trial,) = trials_of(sweep_of([0.1], **names, **settings))
        return trial.name

    first = name()
    assert name() == first == name(settings={"training.max_steps": 5})
    (tmp_path / "words.tsv").write_text("a\tc\n")
    second = name()
    (tmp_path / "base.toml").write_text("training.max_steps = 6")
    third = name()
    assert len({first, second, third, name(dev=str(tmp_path / "words.tsv"))}) == 4
    assert {found[-6:] for found in (first, second, third)} == {"-seed3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"vary: Field required"),
        ('train = "a"\n[vary]\n', r"vary: .* at least 1 item"),
        ("[vary]\na.b = [1]", "expected train, or source and target"),
        ('train = "a"\nseed = 3\n[vary]\na.b = [1]', "seed: not known in a sweep file; did you mean seeds\\?"),
        (
            'train = "a"\n[vary]\na.b = {low = 1, high = 2}',
            "vary.a.b is a range, which only search='random' draws from",
        ),
        ('train = "a"\n[settings]\na.b = 1\n[vary]\na.b = [1]', "a.b stands in settings and in vary"),
        ('train = "a"\n[vary]\ntraining.seed = [1]', r"training.seed: give seeds = \[...\] instead"),
        ('train = "a"\nsearch = "random"\n[vary]\na.b = {low = 2, high = 1}', "expected low < high"),
        ('train = "a"\nsearch = "random"\n[vary]\na.b = {low = 0, high = 1, scale = "log"}', "above 0 with scale=log"),
        ("train = ", "not a TOML file"),
    ],
)
def test_files_that_make_no_sense_are_refused(write, text, message):
    with pytest.raises(ConfigError, match=message):
        read_sweep(write(text))


def test_settings_are_checked_before_anything_is_trained():
    with pytest.raises(ConfigError, match=r"model.encoder.hiden_size: unknown setting; did you mean"):
        trials_of(Sweep.model_validate({"train": "w", "vary": {"model.encoder.hiden_size": [1]}}))


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch):
    script = Path(__file__).with_name("fake_training.py")
    monkeypatch.setattr(running, "TRAIN", (sys.executable, "-S", str(script)))


def run(sweep, folder, **options):
    seen = []
    results = run_trials(trials_of(sweep), folder, on_result=lambda trial, result: seen.append(trial.name), **options)
    return results, seen


def calls(folder):
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def test_what_is_done_is_not_done_again(fake, tmp_path):
    small, whole = sweep_of([0.1], seeds=[1, 2]), sweep_of([0.1, 0.2], seeds=[1, 2])
    results, seen = run(small, tmp_path)
    assert len(seen) == 2
    assert all(result.end == "completed" and 0.1 <= result.value < 0.13 for result in results.values())
    assert run(small, tmp_path) == (results, [])
    more, seen = run(whole, tmp_path)
    assert len(seen) == 2
    assert len(calls(tmp_path)) == len(more) == 4
    assert json.loads((tmp_path / "results.json").read_text()).keys() == more.keys()


def test_a_run_that_ended_before_its_result_was_written_is_read(fake, tmp_path):
    results, _ = run(sweep_of([0.1]), tmp_path)
    (tmp_path / "results.json").unlink()
    again, seen = run(sweep_of([0.1]), tmp_path)
    assert (again, len(seen), len(calls(tmp_path))) == (results, 1, 1)


def test_divergence_is_a_result_and_other_errors_end_the_sweep(fake, tmp_path):
    results, _ = run(sweep_of([13.0, 0.1]), tmp_path)
    assert [result.value is None for result in results.values()] == [True, False]
    assert next(iter(results.values())).end == "step 7: gradients are not finite"
    with pytest.raises(
        ConfigError, match=r"rate=14.0 seed 0: training ended with exit code 2: words.tsv: no such file"
    ):
        run(sweep_of([14.0, 0.3]), tmp_path)
    assert len(calls(tmp_path)) == 3


@pytest.fixture
def interruptible():
    """Ctrl-C as in a program of its own; workers of a parallel test run ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_saves_and_the_next_call_resumes(fake, tmp_path):
    def interrupt():
        while not list(tmp_path.glob("runs/*/metrics.jsonl")):
            time.sleep(0.02)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    sweep = sweep_of([15.0, 0.2])
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run(sweep, tmp_path)
    (log,) = tmp_path.glob("runs/*/metrics.jsonl")
    assert '"interrupted"' in log.read_text()
    assert not (tmp_path / "results.json").exists()
    results, _ = run(sweep, tmp_path)
    assert [call["resumed"] for call in calls(tmp_path)] == [False, True, False]
    assert [result.end for result in results.values()] == ["completed", "completed"]


def test_a_folder_that_was_killed_while_it_was_made_is_made_anew(fake, tmp_path):
    (trial,) = trials_of(sweep_of([0.1]))
    (tmp_path / "runs" / trial.name).mkdir(parents=True)
    results, _ = run(sweep_of([0.1]), tmp_path)
    assert (results[trial.name].end, calls(tmp_path)[0]["resumed"]) == ("completed", False)


def test_some_run_at_once_and_share_the_cores(fake, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    started = []
    original = running.subprocess.Popen

    def start(*arguments, **options):
        started.append((time.time(), options["env"].get("OMP_NUM_THREADS")))
        return original(*arguments, **options)

    monkeypatch.setattr(running.subprocess, "Popen", start)
    monkeypatch.setattr(running.os, "cpu_count", lambda: 6)
    results, _ = run(sweep_of([0.1, 0.2, 0.3]), tmp_path, num_at_once=3)
    assert len(results) == 3
    assert {threads for _, threads in started} == {"2"}
    assert started[2][0] < min(call["time"] for call in calls(tmp_path)) + 0.5


def test_damaged_results_are_named(fake, tmp_path):
    (tmp_path / "results.json").write_text('{"a": {"valu')
    with pytest.raises(CheckpointError, match=r"results.json is damaged .*; delete it"):
        run(sweep_of([0.1]), tmp_path)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_student():
    assert half_width([1.0, 2.0]) == pytest.approx(12.706 * math.sqrt(0.5) / math.sqrt(2))
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3))
    assert half_width([0.0, 1.0] * 10) == pytest.approx(2.093 * 0.51299 / math.sqrt(20), rel=2e-3)
    assert half_width([1.0]) == math.inf


def test_the_table_has_the_best_setting_first_and_its_command(tmp_path):
    trials = trials_of(sweep_of([0.1, 0.2, 0.3], seeds=[1, 2], dev="my dev.tsv"))
    values = [3.0, 1.0, 1.2, 1.4, None, 0.1]
    results = {trial.name: Result(value, 60.0, "completed") for trial, value in zip(trials, values, strict=True)}
    title, head, first, second, third, best, again = summary(trials, results, tmp_path)
    assert title.startswith("6 runs of 3 settings, best first")
    assert head.split() == ["dev", "loss", "95", "%", "seeds", "time", "settings"]
    assert first.split() == ["1.3000", "±", "1.2706", "2", "60", "s", f"{RATE}=0.2"]
    assert second.split()[0] == "2.0000"
    assert third.split() == ["0.1000", "1", "(+1", "without", "value)", "60", "s", f"{RATE}=0.3"]
    assert f"runs/{trials[2].name}; use it with: unrolled predict" in best
    assert again == f"again: unrolled train words.tsv '--dev=my dev.tsv' --preset=tiny {RATE}=0.2 --seed=1"
