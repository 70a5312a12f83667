"""Two files, a pair a line, through the commands."""

from __future__ import annotations

import gzip

import pytest

from unrolled import presets, train
from unrolled.errors import ConfigError, DataError
from unrolled.runs import Run

SHORT = ["--preset", "tiny", "training.max_steps=3", "data.target.units=space", "data.source.units=space"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """`a.en.gz` and `a.de`, with a tab and a no-break space inside a sentence and blanks around one."""
    folder = tmp_path_factory.mktemp("parallel")
    sources = [f"word{number % 7} and word{number % 5}" for number in range(40)]
    targets = [f"wort{number % 7} und wort{number % 5}" for number in range(40)]
    targets[3], targets[5], sources[7] = "wort\tmit\ttab", "ein\u00a0wort", "  outer blanks "
    with gzip.open(folder / "a.en.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(sources) + "\n")
    (folder / "a.de").write_text("\n".join(targets) + "\n", encoding="utf-8")
    return folder / "a.en.gz", folder / "a.de"


def options(files, prefix="--"):
    return [f"{prefix}source", files[0], f"{prefix}target", files[1]]


@pytest.fixture
def trained(command, files, tmp_path):
    result = command("train", *options(files), *options(files, "--dev-"), *SHORT, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    return tmp_path / "run"


def test_training_predicting_measuring_and_scoring(command, files, trained):
    run = Run.open(trained)
    assert run.config.data.format == "parallel"
    assert run.data().train.files == (str(files[0]), str(files[1]))
    assert run.data().train.num_pairs == run.data().dev.num_pairs == 40
    assert "wort\tmit\ttab" in run.vocabulary()["target"]["symbols"]
    assert "ein\u00a0wort" in run.vocabulary()["target"]["symbols"]
    result = command("predict", trained, input="word1\tword2\nword1 and word2\n")
    assert result.exit_code == 0, result.output
    assert "1 symbol not seen in training: 'word1\\tword2'" in result.stderr
    assert len(result.stdout.splitlines()) == 2
    measured = command("evaluate", trained, *options(files), "--predictions", trained.parent / "out.txt")
    assert measured.exit_code == 0, measured.output
    assert len((trained.parent / "out.txt").read_text().splitlines()) == 40
    compared = command("compare", trained, trained.parent / "out.txt", *options(files))
    assert compared.exit_code == 0, compared.output
    assert "paired" in compared.stdout
    alone = command("compare", files[1], trained.parent / "out.txt", *options(files))
    assert alone.exit_code == 0, alone.output
    assert "symbols: symbol" in alone.stdout.splitlines()[0]
    scored = command("score", trained, *options(files))
    assert [line.split("\t")[0] for line in scored.stdout.splitlines()] == [str(line) for line in range(1, 41)]


def test_the_report_names_both_files(command, files):
    result = command("train", *options(files), *SHORT, "--dry-run")
    assert result.exit_code == 0, result.output
    assert 'format = "parallel"' in result.stdout
    assert "34 pairs" in result.stdout
    assert "(a.en.gz and a.de)" in result.stdout


def test_resuming_checks_both_files(command, files, trained):
    moved = files[1].rename(files[1].with_name("moved.de"))
    result = command("train", "--resume", trained)
    assert result.exit_code == 2
    assert "a.de: the run was trained on this file, which is gone" in result.stderr
    moved.rename(files[1])
    assert command("train", "--resume", trained).exit_code == 0
    with pytest.raises(DataError, match="was trained on 2 files, got 1"):
        train(files[0], resume=trained)


def test_a_stray_line_is_refused_before_anything_is_made(command, tmp_path):
    (tmp_path / "s").write_text("a\nb\nc\n")
    (tmp_path / "t").write_text("x\n\ny\nz\n")
    result = command("train", "--source", tmp_path / "s", "--target", tmp_path / "t", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "t: 3 source lines, 4 target lines; expected as many of both; target line 2 is blank" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--source", "s"], "--source needs --target: two files"),
        (["train", "--target", "t"], "--target needs --source: two files"),
        (["train", "p.tsv", "--dev-target", "t"], "--dev-target needs --dev-source: two files"),
        (
            ["train", "p.tsv", "--source", "s", "--target", "t"],
            "in one file or in --source and --target, not both; got p",
        ),
        (["train", "--source", "s", "--target", "t", "--columns", "source,target,features"], "no column of features"),
        (["evaluate", "run"], "expected a file of pairs, or two parallel files as --source and --target"),
        (["score", "run", "--target", "t"], "--target needs --source"),
    ],
)
def test_what_makes_no_sense_is_one_line(command, arguments, message):
    result = command(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_same_from_python(files, tmp_path):
    config = presets.tiny()
    short = config.model_copy(
        update={"training": config.training.model_copy(update={"max_epochs": None, "max_steps": 2})}
    )
    outcome = train(files, config=short, out=tmp_path / "run")
    assert Run.open(outcome.path).config.data.format == "parallel"
    features = short.model_copy(
        update={"data": short.data.model_copy(update={"columns": ("source", "target", "features")})}
    )
    with pytest.raises(ConfigError, match="no column of features"):
        train(files, config=features, out=tmp_path / "other")
