"""`task:NAME` in place of a file, in every command that takes one."""

import json


def test_train_predict_evaluate_and_compare(command, tmp_path):
    run = tmp_path / "run"
    settings = ["data.task.length=3", "data.task.alphabet=xyz", "training.max_steps=60", "training.max_batch_size=64"]
    trained = command("train", "task:reverse", "--preset", "tiny", "--out", run, *settings)
    assert trained.exit_code == 0, trained.output
    assert "at best without reading the source: 88.89 % wrong sources" in trained.output
    predicted = command("predict", run, "task:reverse").stdout.splitlines()
    assert len(predicted) == 1000
    assert set("".join(predicted)) <= set("xyz")
    report = json.loads(command("evaluate", run, "task:reverse", "--json").stdout)
    assert report["blind"]["error_rate"] == 1 - 1 / 9
    assert report["exposure"]["num_labels"][0] == 1000
    assert "task:reverse" in trained.output
    scored = command("score", run, "task:reverse").stdout.splitlines()
    assert len(scored) == 1000
    assert all(line.split("\t")[2] == line.split("\t")[3][::-1] for line in scored)
    assert "paired" in command("compare", "task:reverse", run, run).stdout


def test_what_does_not_exist_is_named(command, tmp_path):
    run = tmp_path / "run"
    unknown = command("train", "task:copi", "--out", run)
    assert unknown.stderr == (
        "unrolled: data.task.type: expected copy or reverse or sort or addition or dates or adding or copy_memory, got"
        " 'copi'; did you mean data.task.type=copy?\n"
    )
    assert unknown.exit_code == 2
    dry = command("train", "task:dates", "--preset", "tiny", "--dry-run", "data.task.last_year=1900")
    assert "at best without reading the source: 99.73 % wrong sources" in dry.output
    assert not run.exists()
