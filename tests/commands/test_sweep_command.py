"""`unrolled sweep` with real trainings."""

from __future__ import annotations

from unrolled import load


def test_a_sweep_trains_and_its_best_run_predicts(command, workplace, tmp_path):
    words = workplace / "words.tsv"
    (tmp_path / "sweep.toml").write_text(
        f'train = "{words}"\ndev = "{words}"\npreset = "tiny"\nsettings.data.target.units = "space"\n'
        "vary.training.max_steps = [1, 8]\n"
    )
    planned = command("sweep", tmp_path / "sweep.toml", "--dry-run")
    assert planned.stdout.splitlines()[1].startswith(f"unrolled train {words} --dev={words} --preset=tiny")
    result = command("sweep", tmp_path / "sweep.toml", "--out", tmp_path / "out", "--jobs", 2)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("2 runs of 2 settings")
    assert lines[2].split()[-1] == "training.max_steps=8"
    assert lines[-1].endswith("training.max_steps=8 --seed=0")
    assert result.stderr.count("note: run ") == 2
    best = lines[-2].removeprefix("best: ").partition(";")[0]
    assert len(load(best).predict(["abc"])) == 1
    again = command("sweep", tmp_path / "sweep.toml", "--out", tmp_path / "out")
    assert (again.stdout, again.stderr) == (result.stdout, "")
