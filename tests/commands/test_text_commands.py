"""Language models through the command line: train on text, evaluate, score, generate, resume."""

from __future__ import annotations

import json
import math
import re

import pytest
from typer.testing import CliRunner

from unrolled.commands.app import app

LINES = "the cat sat on the mat\nand the dog sat on the log\n"
SMALL = {
    "char-lm": ["model.decoder.hidden_size=32", "model.decoder.embedding_dim=16"],
    "gpt-tiny": ["model.decoder.d_model=16", "model.decoder.d_ff=32", "model.decoder.num_layers=1", "data.context=16"],
}


def train(*arguments):
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="session")
def text_runs(tmp_path_factory):
    """A folder with `a.txt` and one run of each kind of language model."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text(LINES * 60, encoding="utf-8")
    for preset, settings in SMALL.items():
        options = ["--preset", preset, "--out", folder / preset, "training.max_steps=200", "training.batch_tokens=256"]
        train(folder / "a.txt", *options, "data.context=16", "training.schedule.warmup_steps=5", *settings)
    return folder


@pytest.mark.parametrize("preset", SMALL)
def test_a_model_learns_a_text_and_says_how_surprised_it_is(command, text_runs, preset):
    result = command("evaluate", text_runs / preset, text_runs / "a.txt", "--json")
    report = json.loads(result.stdout)
    num_characters = len(LINES) * 60
    assert (report["num_labels"], report["num_characters"], report["num_bytes"]) == (num_characters,) * 3
    assert report["num_words"] == 15 * 60
    assert report["loss"] < 1.2
    assert report["perplexity"] == pytest.approx(math.exp(report["loss"]))
    assert report["bits_per_character"] == pytest.approx(report["loss"] / math.log(2))
    assert report["word_perplexity"] == pytest.approx(math.exp(report["nats"] / (15 * 60)))
    shown = command("evaluate", text_runs / preset, text_runs / "a.txt").stdout
    assert f"perplexity per character  {report['perplexity']:.4f}  ({report['loss']:.4f} nats)" in shown


@pytest.mark.parametrize("preset", SMALL)
def test_a_text_of_its_own_chooses_the_weights(command, text_runs, preset, tmp_path):
    (tmp_path / "valid.txt").write_text("and the cat sat on the log\n" * 9, encoding="utf-8")
    limits = ["training.max_steps=20", "training.evaluate_every=10", "training.batch_tokens=256", "data.context=16"]
    options = ["--dev", tmp_path / "valid.txt", "--preset", preset, "--out", tmp_path / "run"]
    train(text_runs / "a.txt", *options, *limits, *SMALL[preset])
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [event for event in events if event["event"] == "Evaluated"]
    assert {event["num_labels"] for event in evaluated} == {27 * 9}
    measured = json.loads(command("evaluate", tmp_path / "run", tmp_path / "valid.txt", "--json").stdout)
    assert measured["loss"] == pytest.approx(min(event["loss"] for event in evaluated), rel=1e-4)
    digest = json.loads((tmp_path / "run" / "data.json").read_text())["dev"]
    assert "valid.txt" in json.dumps(digest)
    assert command("doctor", tmp_path / "run").exit_code in (0, 1)


def test_both_engines_are_equally_surprised(command, text_runs):
    for preset in SMALL:
        outputs = [
            json.loads(
                command("evaluate", text_runs / preset, text_runs / "a.txt", "--json", "--engine", engine).stdout
            )
            for engine in ("torch", "numpy")
        ]
        assert outputs[0]["nats"] == pytest.approx(outputs[1]["nats"], rel=1e-5)


@pytest.mark.parametrize("preset", SMALL)
def test_generated_text_is_exact_under_a_seed_in_both_engines(command, text_runs, preset):
    ask = ["generate", text_runs / preset, "--prompt", "the ", "--max-tokens", "40", "--temperature", "0.8", "--seed"]
    first = command(*ask, "3")
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("the ")
    assert len(first.stdout) == 4 + 40 + 1
    assert command(*ask, "3", "--stream").stdout == first.stdout
    assert command(*ask, "3", "--engine", "numpy").stdout == first.stdout
    assert command(*ask, "4").stdout != first.stdout


def test_the_most_probable_text_needs_no_seed(command, text_runs):
    ask = ["generate", text_runs / "char-lm", "--max-tokens", "30", "--temperature", "0", "--seed"]
    assert command(*ask, "1").stdout == command(*ask, "2").stdout


def test_lines_are_scored_after_the_lines_before(command, text_runs):
    (text_runs / "b.txt").write_text("the dog sat\n\nthe cat sat", encoding="utf-8")
    rows = [
        line.split("\t") for line in command("score", text_runs / "char-lm", text_runs / "b.txt").stdout.splitlines()
    ]
    assert [(row[0], row[2]) for row in rows] == [("1", "the dog sat"), ("2", ""), ("3", "the cat sat")]
    (text_runs / "c.txt").write_text("the dog sat\n\nthe cat sat\n", encoding="utf-8")
    whole = json.loads(command("evaluate", text_runs / "char-lm", text_runs / "c.txt", "--json").stdout)
    assert -sum(float(row[1]) for row in rows) == pytest.approx(whole["nats"], abs=1e-4)


def test_each_command_names_the_one_for_the_other_kind_of_run(command, text_runs, run):
    refused = command("predict", text_runs / "char-lm", input="abc\n")
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"unrolled: {text_runs / 'char-lm'} is a language model: it goes on from a text and has no source to answer;"
        f" use: unrolled generate {text_runs / 'char-lm'} --prompt TEXT\n"
    )
    refused = command("generate", run, "--prompt", "abc")
    assert refused.exit_code == 2
    assert (
        refused.stderr
        == f"unrolled: {run} is no language model: it answers sources; use: unrolled predict {run} FILE\n"
    )
    refused = command("compare", text_runs / "a.txt", text_runs / "char-lm", run)
    assert refused.exit_code == 2
    assert "is a language model" in refused.stderr
    refused = command("evaluate", text_runs / "char-lm", text_runs / "a.txt", "--beam", "2")
    assert refused.stderr == "unrolled: a language model predicts no answers to a test; leave out --beam\n"
    refused = command("predict", text_runs / "char-lm", "--with", run, input="abc\n")
    assert refused.exit_code == 2


# --- unusual input ---------------------------------------------------------------------------------------------------


def test_unknown_symbols_of_a_prompt_are_told_and_read_as_unknown(command, text_runs):
    result = command("generate", text_runs / "char-lm", "--prompt", "the Çat", "--max-tokens", "5")
    assert result.exit_code == 0
    assert result.stderr == "note: 1 symbol not seen in training: U+00C7 Ç ×1 (line 1); read as unknown\n"
    assert result.stdout.startswith("the Çat")
    only = command("generate", text_runs / "char-lm", "--prompt", "\U0001f600", "--max-tokens", "5")
    assert (only.exit_code, only.stderr.count("\n")) == (0, 1)


def test_a_prompt_longer_than_a_window_is_read_from_its_end(command, text_runs):
    long = "the cat sat on the mat and the "
    result = command("generate", text_runs / "gpt-tiny", "--prompt", long, "--max-tokens", "20")
    assert result.stderr == "note: the prompt has 31 symbols; its last 16 are read\n"
    end = command("generate", text_runs / "gpt-tiny", "--prompt", long[-16:], "--max-tokens", "20")
    assert result.stdout == long[:-16] + end.stdout


def test_an_empty_prompt_begins_a_line(command, text_runs):
    result = command("generate", text_runs / "char-lm", "--max-tokens", "5")
    assert (result.exit_code, len(result.stdout)) == (0, 6)


def test_a_model_that_knows_no_line_end_needs_a_prompt(command, tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghij" * 50, encoding="utf-8")
    train(
        tmp_path / "a.txt", "--preset", "char-lm", "--out", tmp_path / "run", "training.max_steps=2", *SMALL["char-lm"]
    )
    result = command("generate", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.startswith("unrolled: generating needs a prompt: the model knows no line end")
    assert command("generate", tmp_path / "run", "--prompt", "abc", "--max-tokens", "3").exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.txt: is empty; expected running text"),
        ("x", "a.txt: 1 symbol to train on; a language model needs at least 2"),
    ],
)
def test_no_text_is_refused_in_one_line(command, tmp_path, text, message):
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    result = command("train", tmp_path / "a.txt", "--preset", "char-lm", "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (2, f"unrolled: {tmp_path / message}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("preset", SMALL)
def test_a_text_shorter_than_the_context_is_trained_on_with_a_warning(command, tmp_path, preset):
    (tmp_path / "a.txt").write_text("hello", encoding="utf-8")
    settings = [*SMALL[preset], "data.context=256", "training.max_steps=3"]
    result = command("train", tmp_path / "a.txt", "--preset", preset, "--out", tmp_path / "run", *settings)
    assert result.exit_code == 0, result.output
    assert "note: data.context=256 is longer than the text: cut to 4" in result.stderr
    assert "note: no valid set: the text is too short to hold a part of it out; give a valid file" in result.stderr
    assert "little text: 5 training and 0 valid symbols" in result.stderr
    assert command("generate", tmp_path / "run", "--prompt", "he", "--max-tokens", "3").exit_code == 0


def test_training_further_keeps_the_vocabulary_and_lists_new_symbols(command, text_runs, tmp_path):
    before = (text_runs / "char-lm" / "vocabulary.json").read_bytes()
    (tmp_path / "b.txt").write_text("QXZ!?" * 40, encoding="utf-8")
    options = ["--from", text_runs / "char-lm", "--out", tmp_path / "run", "training.max_steps=2"]
    result = command("train", tmp_path / "b.txt", *options)
    assert result.exit_code == 0, result.output
    assert re.search(r"note: train: 5 symbols not in the vocabulary: U\+0051 Q ×36", result.stderr)
    assert (tmp_path / "run" / "vocabulary.json").read_bytes() == before


def test_subwords_are_learnt_evaluated_and_written(command, text_runs, tmp_path):
    settings = ["data.units=bpe", "data.num_subwords=280", "training.max_steps=20", *SMALL["char-lm"]]
    trained = train(text_runs / "a.txt", "--preset", "char-lm", "--out", tmp_path / "run", *settings)
    assert " distinct subwords; " in trained.stderr
    report = command("evaluate", tmp_path / "run", text_runs / "a.txt")
    assert "perplexity per subword" in report.stdout
    assert command("generate", tmp_path / "run", "--prompt", "the 😀", "--max-tokens", "9").stdout.startswith("the 😀")
    rows = command("score", tmp_path / "run", text_runs / "a.txt").stdout.splitlines()
    nats = json.loads(command("evaluate", tmp_path / "run", text_runs / "a.txt", "--json").stdout)["nats"]
    assert -sum(float(row.split("\t")[1]) for row in rows) == pytest.approx(nats, rel=1e-2)


def test_a_convolution_is_a_language_model_too(command, text_runs, tmp_path):
    settings = ["model.decoder.type=convolution", "model.decoder.channels=8", "training.max_steps=3", "data.context=16"]
    train(text_runs / "a.txt", "--preset", "char-lm", "--out", tmp_path / "run", *settings)
    ask = ["generate", tmp_path / "run", "--prompt", "the ", "--max-tokens", "20", "--engine"]
    assert command(*ask, "torch").stdout == command(*ask, "numpy").stdout


def test_a_text_without_a_preset_is_told_of_one(command, text_runs, tmp_path):
    refused = command("train", text_runs / "a.txt", "--out", tmp_path / "run")
    assert refused.exit_code == 2
    assert "take a preset such as char-lm if it is running text" in refused.stderr


def test_settings_that_need_the_other_kind_of_data_are_refused(command, text_runs, tmp_path):
    result = command("train", text_runs / "a.txt", "--preset", "g2p", "data.type=text", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "data.type=text does not go with model.type=seq2seq" in result.stderr
    result = command(
        "train",
        text_runs / "a.txt",
        "--preset",
        "gpt-tiny",
        "--out",
        tmp_path / "run",
        "model.decoder.positions=learned",
        "model.decoder.max_positions=64",
        "data.context=65",
    )
    assert "positions=learned end at max_positions=64, below data.context=65" in result.stderr


def test_a_folder_of_texts_and_a_dry_run(command, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text(LINES * 10, encoding="utf-8")
    (folder / "two.txt").write_text(LINES * 10, encoding="utf-8")
    plan = command("train", folder, "--preset", "char-lm", "--dry-run")
    assert "train: 900 symbols" in plan.stdout
    assert "(2 files)" in plan.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]
    train(folder, "--preset", "char-lm", "--out", tmp_path / "run", "training.max_steps=2", *SMALL["char-lm"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tokens", "run", "texts"]
