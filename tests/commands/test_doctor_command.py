"""`unrolled doctor` through its entry point."""

from __future__ import annotations

import json
import sys


def test_a_healthy_run(command, run):
    result = command("doctor", run)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "nothing found"
    assert lines[1].startswith("checked: start, progress, ")
    assert lines[2:] == ["not checked: overfits one batch (not asked for)"]


def test_a_broken_run_leaves_with_1_and_says_where_and_what_to_do(command, run, tmp_path):
    unrelated = tmp_path / "unrelated.tsv"
    unrelated.write_text("".join(f"{'ab' * (n % 3 + 1)}\t{'A A B' if n % 2 else 'B B A'}\n" for n in range(20)))
    result = command("doctor", run, "--data", unrelated)
    assert result.exit_code == 1
    first = result.stdout.splitlines()[:4]
    assert first[0].startswith("broken: ")
    assert [line.split()[0] for line in first[1:]] == ["measured", "right", "to"]


def test_json_is_one_object(command, run):
    result = command("doctor", run, "--json")
    assert json.loads(result.stdout)["findings"] == []


def test_no_run_is_an_error_of_3(command, tmp_path):
    result = command("doctor", tmp_path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"unrolled: {tmp_path}/config.json is missing")


def test_without_torch_it_says_what_to_install(command, run, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("unrolled.diagnosis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = command("doctor", run)
    assert result.exit_code == 2
    assert result.stderr == (
        "unrolled: diagnosis needs torch, which is not installed; run: pip install 'unrolled[train]'\n"
    )


def test_a_hopeless_training_leaves_with_4_and_one_line(command, workplace, tmp_path, monkeypatch):
    monkeypatch.setattr("unrolled.training.watch.WINDOW", 20)
    monkeypatch.setattr("unrolled.training.watch.STUCK", 0.9)
    settings = {
        "data.target.units": "space",
        "training.max_steps": 50,
        "training.optimizer.learning_rate": 1e-12,
        "training.schedule.type": "constant",
        "training.schedule.warmup_steps": 0,
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    result = command("train", workplace / "words.tsv", *overrides, "--preset", "tiny", "--out", tmp_path / "run")
    assert result.exit_code == 4
    last = result.stderr.splitlines()[-1]
    assert last.startswith("unrolled: step 40: the loss is stuck: ")
    assert last.endswith("go on all the same with training.watch=false")
    assert command("doctor", tmp_path / "run").exit_code == 1
