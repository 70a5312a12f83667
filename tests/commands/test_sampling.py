"""Outputs that are drawn, forced beginnings, ensembles of different models, and how wrong calls are told."""

from __future__ import annotations

import json
import warnings

import pytest

WORDS = ["abc", "", "deed", "b", "cab", "edcba"]
LINES = "".join(f"{word}\n" for word in WORDS)


@pytest.fixture(scope="module")
def other_run(workplace):
    """A Transformer on the same words, barely trained."""
    from typer.testing import CliRunner

    from unrolled.commands.app import app

    size = ["d_model=16", "d_ff=16", "num_layers=1", "num_heads=2"]
    model = [f"model.{side}.{setting}" for side in ("encoder", "decoder") for setting in ["type=transformer", *size]]
    options = ["--preset", "tiny", "--seed", "3", "data.target.units=space", "training.max_steps=20", *model]
    arguments = ["train", str(workplace / "words.tsv"), "--out", str(workplace / "other"), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return workplace / "other"


def drawn(command, run, *options, lines=LINES):
    result = command("predict", run, "--sample", *options, input=lines)
    assert result.exit_code == 0, result.output
    return result.stdout.split("\n")[:-1]


# --- sampling --------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_outputs_in_both_engines(command, run):
    first = drawn(command, run, "--seed", 1, "--temperature", 3)
    assert first == drawn(command, run, "--seed", 1, "--temperature", 3)
    assert first == drawn(command, run, "--seed", 1, "--temperature", 3, "--engine", "numpy")
    assert first != drawn(command, run, "--seed", 2, "--temperature", 3)
    assert first[1] == ""
    assert len(first) == len(WORDS)


def test_an_output_does_not_depend_on_other_lines(command, run):
    whole = drawn(command, run, "--seed", 4, "--temperature", 3)
    changed = drawn(command, run, "--seed", 4, "--temperature", 3, lines="eeeee\n\nabcabc\nb\n")
    assert changed[3] == whole[3]
    assert changed[0] != whole[0]


def test_what_is_drawn_narrows_to_the_best(command, run):
    best = command("predict", run, "--beam", 1, input=LINES).stdout.split("\n")[:-1]
    for options in (["--top-k", 1], ["--top-p", 0.0001], ["--temperature", 0.001]):
        assert drawn(command, run, *options) == best
    assert drawn(command, run, "--temperature", 5) != best


def test_several_draws_are_a_table(command, run):
    rows = [line.split("\t") for line in drawn(command, run, "--temperature", 4, "--nbest", 3, lines="abc\n\nd\n")]
    assert [(row[0], row[1]) for row in rows] == [("1", "1"), ("1", "2"), ("1", "3"), ("2", "1")] + [
        ("3", str(rank)) for rank in (1, 2, 3)
    ]
    assert len({row[2] for row in rows[:3]}) > 1
    single = drawn(command, run, "--temperature", 4, lines="abc\n\nd\n")
    assert [rows[0][2], rows[4][2]] == [single[0], single[2]]
    assert all(float(row[3]) < 0 for row in rows if row[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "2"], "--temperature is an option of --sample; add it, or leave this out"),
        (["--top-k", "2"], "--top-k is an option of --sample"),
        (["--seed", "2"], "--seed is an option of --sample"),
        (["--sample", "--beam", "2"], "--beam searches and --sample draws; leave one of them out"),
        (["--sample", "--temperature", "0"], "sampling temperature must be above 0, got 0.0"),
        (["--sample", "--top-p", "1.5"], r"sampling top_p must be in (0, 1], got 1.5"),
        (["--sample", "--seed", "-1"], "sampling needs num_samples >= 1 and seed >= 0, got 1 and -1"),
    ],
)
def test_senseless_chances_are_refused(command, run, options, message):
    result = command("predict", run, *options, input="abc\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


# --- forced beginnings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--beam", "1"], ["--sample", "--temperature", "2"], ["--engine", "numpy"]])
def test_every_output_begins_with_the_prefix(command, run, options):
    result = command("predict", run, "--prefix", "D A", *options, input=LINES)
    assert result.exit_code == 0, result.output
    lines = result.stdout.split("\n")[:-1]
    assert [line.startswith("D A") for line in lines] == [bool(word) for word in WORDS]


def test_a_prefix_counts_in_the_probability(command, run):
    result = command("predict", run, "--prefix", "C", "--jsonl", input="abc\n")
    found = json.loads(result.stdout)
    assert found["prediction"] == "C B A"
    free = json.loads(command("predict", run, "--jsonl", input="abc\n").stdout)
    assert found["log_prob"] == pytest.approx(free["log_prob"], abs=1e-5)


def test_a_prefix_that_the_model_cannot_write_is_refused(command, run):
    result = command("predict", run, "--prefix", "A X", input="abc\n")
    assert result.exit_code == 2
    assert "prefix 'A X': 1 symbol not seen in training: U+0058 X" in result.stderr


# --- ensembles, unknown symbols, notes -------------------------------------------------------------------------------


def test_an_ensemble_of_different_architectures(command, run, other_run):
    result = command("predict", run, "--with", other_run, "--jsonl", input="abc\n")
    assert result.exit_code == 0, result.output
    both = json.loads(result.stdout)
    assert both["prediction"] == "C B A"
    alone = json.loads(command("predict", run, "--jsonl", input="abc\n").stdout)
    assert both["log_prob"] < alone["log_prob"] - 0.1
    swapped = command("predict", other_run, "--with", run, "--jsonl", "--engine", "numpy", input="abc\n")
    assert json.loads(swapped.stdout)["log_prob"] == pytest.approx(both["log_prob"], abs=1e-4)
    assert drawn(command, run, "--with", other_run, "--top-k", 1, lines="abc\n") == ["C B A"]


def test_unknown_symbols_can_be_refused(command, run, tmp_path):
    out = tmp_path / "out.txt"
    result = command("predict", run, "--refuse-unknown", "--out", out, input="abc\nab\u00e7\n")
    assert result.exit_code == 2
    assert "1 symbol not seen in training: U+00E7 \u00e7 \u00d71 (line 2)" in result.stderr
    assert not out.exists()
    assert command("predict", run, "--refuse-unknown", input="abc\n").exit_code == 0


def test_blank_lines_have_no_unknown_symbols(command, run):
    result = command("predict", run, "--refuse-unknown", input="abc\n \u00a0 \n\n")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 3


def test_pictures_warn_once(command, run, tmp_path, monkeypatch):
    from unrolled import figures

    original = figures.attention

    def warned(*arguments, **options):
        warnings.warn("no font on this system has X", stacklevel=2)
        return original(*arguments, **options)

    monkeypatch.setattr(figures, "attention", warned)
    result = command("predict", run, "--attention", tmp_path, input="abc\nab\nb\n")
    assert result.exit_code == 0, result.output
    assert result.stderr == "note: no font on this system has X (and 2 more such warnings)\n"
    assert len(list(tmp_path.glob("*.png"))) == 3


# --- wrong calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "run", "--beam", "0"], "Invalid value for '--beam'"),
        (["predict", "--bem"], "No such option: --bem"),
        (["predict"], "Missing argument 'RUN'; see"),
        (["trian"], "No such command 'trian'"),
        (["--foo"], "No such option: --foo"),
        (["predict", "a", "b", "c"], "unexpected extra argument"),
    ],
)
def test_a_wrong_call_is_one_line(command, arguments, message):
    result = command(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("unrolled: ")
    assert message in line
    assert line.endswith("--help")


def test_no_arguments_at_all_print_the_help(command):
    result = command()
    assert result.exit_code == 2
    assert "Commands" in result.output
