"""The command line through its real entry point: what goes in, what comes out, and how it fails."""

from __future__ import annotations

import json

import pytest

import unrolled
from unrolled.commands.app import app

FLAGS = {
    "train": "--source --target --dev --dev-source --dev-target --columns --preset --config --out --from --resume"
    " --device --seed --minutes --dry-run",
    "predict": "--with --out --beam --nbest --sample --temperature --top-k --top-p --seed --prefix --refuse-unknown"
    " --jsonl --engine --attention",
    "generate": "--prompt --temperature --top-k --top-p --max-tokens --seed --stream --engine",
    "evaluate": "--source --target --with --beam --bleu --engine --predictions --json",
    "compare": "--source --target",
    "score": "--source --target --engine",
    "doctor": "--data --json",
    "show": "--data --input --out",
    "report": "--data --out",
    "study": "--list --full --out",
    "sweep": "--out --jobs --dry-run",
    "presets": "",
    "demo": "",
}


# --- the face --------------------------------------------------------------------------------------------------------


def test_the_flags_are_these_and_no_others():
    import typer.main

    group = typer.main.get_command(app)
    found = {name: _flags(command) for name, command in group.commands.items()}
    assert found == {name: set(flags.split()) for name, flags in FLAGS.items()}
    assert _flags(group) == {"--version", "--debug"}


def _flags(command):
    return {option for parameter in command.params for option in parameter.opts if option.startswith("-")}


@pytest.mark.parametrize(("name", "file"), [("predict", "-"), ("score", "words.tsv"), ("evaluate", "words.tsv")])
def test_the_engine_is_a_choice(command, run, workplace, monkeypatch, name, file):
    arguments = [name, run, file if file == "-" else workplace / file]
    assert command(*arguments, "--engine", "numpy", input="abc\n").exit_code == 0
    monkeypatch.setattr("unrolled.inference.engines.find_spec", lambda _: None)
    assert command(*arguments, input="abc\n").exit_code == 0  # auto: what is there
    refused = command(*arguments, "--engine", "torch", input="abc\n")
    assert (refused.exit_code, refused.stderr.partition(" needs ")[0]) == (2, "unrolled: the torch engine")


@pytest.mark.parametrize("probed", ["onednn", "default"])
def test_whatever_decodes_a_file_chooses_how_matrices_are_multiplied(command, run, workplace, monkeypatch, probed):
    from unrolled.models import engine, matrix_products

    modes = []
    start = engine.TorchEngine.start
    score = engine.TorchEngine.log_probs
    for name, plain in (("start", start), ("log_probs", score)):
        seen = lambda *args, plain=plain, **options: (  # noqa: E731
            modes.append(matrix_products.current_matrix_mode()) or plain(*args, **options)
        )
        monkeypatch.setattr(engine.TorchEngine, name, seen)
    probes = []
    monkeypatch.setattr(matrix_products, "probe_matrix_mode", lambda: probes.append(probed) or probed)
    file = workplace / "words.tsv"
    for words in (("predict", run, file), ("evaluate", run, file), ("score", run, file), ("compare", file, run, run)):
        modes.clear()
        assert command(*words).exit_code == 0
        assert set(modes) == {probed}
    assert len(probes) == 4
    modes.clear()
    assert command("predict", run, "-", input="abc\n").exit_code == 0
    assert set(modes) == {"default"}  # one line is answered before the choice is made
    for other in ("numpy", "bfloat16"):
        assert command("evaluate", run, file, "--engine", other).exit_code == 0
    assert len(probes) == 4


def test_version(command):
    assert command("--version").output == f"unrolled {unrolled.__version__}\n"


def test_help_names_every_command(command):
    result = command("--help")
    assert result.exit_code == 0
    assert all(f"  {name} " in result.output for name in FLAGS)
    assert command().output.startswith("Usage:")


def test_presets_stand_one_a_line(command):
    lines = command("presets").output.splitlines()
    names = "g2p inflect transliterate translate-small tiny char-lm word-lm gpt-tiny music adding copy-memory"
    assert [line.split()[0] for line in lines] == names.split()


# --- predict ---------------------------------------------------------------------------------------------------------


def test_one_line_out_for_each_line_in(command, run):
    result = command("predict", run, "-", input="abc\n\nde\n   \nba\n")
    assert result.stdout == "C B A\n\nE D\n\nA B\n"
    assert result.exit_code == 0


def test_a_file_gives_the_same_as_a_pipe(command, run, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"abc\r\n\r\nde")
    assert command("predict", run, tmp_path / "in.txt").stdout == "C B A\n\nE D\n"
    assert command("predict", run, input="abc\n\nde").stdout == "C B A\n\nE D\n"


def test_an_empty_input_is_answered_by_an_empty_output_and_a_note(command, run, tmp_path):
    (tmp_path / "in.txt").touch()
    for result in (command("predict", run, tmp_path / "in.txt"), command("predict", run, input="")):
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "note: the input is empty\n")


def test_lines_of_a_data_file_are_taken_too(command, run, workplace):
    result = command("predict", run, workplace / "words.tsv")
    first = (workplace / "words.tsv").read_text().splitlines()[0].split("\t")
    assert result.stdout.splitlines()[0] == first[1]


def test_n_best_is_a_table(command, run):
    result = command("predict", run, "--nbest", "3", input="abc\n\nde\n")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [
        ("1", "1"),
        ("1", "2"),
        ("1", "3"),
        ("2", "1"),
        ("3", "1"),
        ("3", "2"),
        ("3", "3"),
    ]
    assert rows[0][2] == "C B A"
    assert rows[3] == ["2", "1", "", "0.000000", "0.000000"]
    scores = [float(row[4]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)


def test_json_lines(command, run):
    result = command("predict", run, "--jsonl", input="abc\né\n")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["line"], first["rank"], first["source"], first["prediction"]) == (1, 1, "abc", "C B A")
    assert first["log_prob"] == first["score"] < 0
    assert second["source"] == "é"
    assert "é" in result.stdout


def test_unknown_symbols_are_summed_up_on_standard_error(command, run):
    result = command("predict", run, input="abc\nabç\n\U0001f600\n")
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == (
        "note: 2 symbols not seen in training: U+00E7 ç ×1 (line 2), U+1F600 ×1 (line 3); read as unknown\n"
    )


def test_lines_longer_than_any_in_training_are_answered_and_named(command, run):
    result = command("predict", run, input="abc\n" + "a" * 7 + "\n" + "ab" * 100 + "\n" + "a" * 8 + "\n")
    assert (len(result.stdout.splitlines()), result.exit_code) == (4, 0)
    assert result.stdout.startswith("C B A\n")
    assert result.stderr == (
        "note: longer than anything in training (8 symbols, end symbol included), so results may be poor: lines 3, 4\n"
    )


def test_output_goes_to_a_file_whole(command, run, tmp_path):
    result = command("predict", run, "--out", tmp_path / "out.txt", input="abc\nde\n")
    assert (result.stdout, (tmp_path / "out.txt").read_text()) == ("", "C B A\nE D\n")


def test_a_bad_line_leaves_no_half_written_file(command, run, tmp_path):
    result = command("predict", run, "--out", tmp_path / "out.txt", input=b"abc\nca\x92\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "unrolled: standard input, line 2: column 3 (byte 6 of the file, 0x92) is not UTF-8"
    )
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_pictures_are_saved_for_lines_that_say_something(command, run, tmp_path):
    command("predict", run, "--attention", tmp_path / "pictures", input="abc\n\nde\n")
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["line-000001.png", "line-000003.png"]


def test_characters_without_a_font_are_one_note(command, run, tmp_path, recwarn):
    result = command("predict", run, "--attention", tmp_path, input="ab\U00013000\n")
    assert result.exit_code == 0
    assert [line for line in result.stderr.splitlines() if line.startswith("note: ") and "U+13000" in line]
    assert "Warning" not in result.stderr


def test_an_ensemble_of_a_run_with_itself_is_that_run(command, run):
    assert command("predict", run, "--with", run, input="abc\n").stdout == "C B A\n"


def test_both_spellings_of_a_letter_give_one_output(command, workplace, tmp_path):
    (tmp_path / "pairs.tsv").write_text("caf\u00e9\tx\nabc\ty\n", encoding="utf-8")
    dev = ("--dev", tmp_path / "pairs.tsv")
    command(
        "train", tmp_path / "pairs.tsv", *dev, "--preset", "tiny", "--out", tmp_path / "run", "training.max_epochs=2"
    )
    result = command("predict", tmp_path / "run", "--jsonl", input="caf\u00e9\ncafe\u0301\n")
    composed, decomposed = (json.loads(line)["log_prob"] for line in result.stdout.splitlines())
    assert composed == pytest.approx(decomposed, abs=1e-6)
    assert result.stderr == ""


def test_a_model_of_learned_positions_answers_lines_that_it_cannot_read(command, workplace, tmp_path):
    small = ["type=transformer", "d_model=8", "d_ff=8", "num_layers=1", "positions=learned", "max_positions=16"]
    settings = [f"model.{side}.{setting}" for side in ("encoder", "decoder") for setting in small]
    limits = ["data.source.max_length=16", "data.target.max_length=16", "training.dev_metric=error_rate"]
    arguments = ("train", workplace / "words.tsv", "--out", tmp_path / "run", *settings, *limits)
    trained = command(*arguments, "training.max_epochs=1")
    assert trained.exit_code == 0, trained.output
    result = command("predict", tmp_path / "run", "--jsonl", input="abc\n" + "a" * 16 + "\n\nde\n")
    assert result.exit_code == 0
    first, second, *others = map(json.loads, result.stdout.splitlines())
    assert (second["prediction"], second["log_prob"], second["is_finished"]) == ("", None, False)
    assert len(others) == 2
    assert first["log_prob"] < 0
    assert result.stderr == (
        "note: longer than the model can read (16 symbols, end symbol included), so answered by nothing: line 2\n"
    )


@pytest.mark.parametrize(("header", "num_pairs", "is_noted"), [("source\ttarget\n", 3, True), ("", 2, False)])
def test_a_header_is_data_and_pointed_out(command, tmp_path, header, num_pairs, is_noted):
    (tmp_path / "pairs.tsv").write_text(header + "cat\tkat\ndog\that\n")
    arguments = ("train", tmp_path / "pairs.tsv", "--dry-run", "--dev", tmp_path / "pairs.tsv")
    result = command(*arguments)
    assert f"train: {num_pairs} pairs" in result.stdout
    assert ("looks like column names" in result.stdout) == is_noted
    if header:
        assert "train: 2 pairs" in command(*arguments, "data.header=true").stdout


# --- evaluate, score, compare ----------------------------------------------------------------------------------------


def test_evaluate_shows_what_goes_wrong(command, run, tmp_path):
    (tmp_path / "test.tsv").write_text("abc\tC B A\nde\tX X X\nabc\tX\n")
    result = command("evaluate", run, tmp_path / "test.tsv", "--predictions", tmp_path / "predictions.txt")
    assert result.exit_code == 0
    assert (tmp_path / "predictions.txt").read_text() == "C B A\nE D\nC B A\n"
    for part in ("50.00 %", "by source length", "most frequent edits", "2  de: E D | X X X", "exposure gap"):
        assert part in result.stdout.replace("ED | XXX", "E D | X X X")


def test_evaluate_speaks_json(command, run, workplace):
    values = json.loads(command("evaluate", run, workplace / "words.tsv", "--json", "--beam", "2").stdout)
    assert (values["beam"], values["normal_form"], values["unit"]) == (2, "NFC", "symbol")
    assert values["error_rate"]["low"] <= values["error_rate"]["value"] <= values["error_rate"]["high"] < 0.3


def test_compare_takes_runs_and_files_of_other_programs(command, run, workplace, tmp_path):
    (tmp_path / "other.txt").write_text("X\n" * len((workplace / "words.tsv").read_text().splitlines()))
    result = command("compare", workplace / "words.tsv", run, tmp_path / "other.txt")
    assert result.exit_code == 0
    assert "paired" in result.stdout
    assert "p = 0.00" in result.stdout


def test_score_agrees_with_prediction(command, run, tmp_path):
    (tmp_path / "pairs.tsv").write_text("abc\tC B A\n\nde\tE D\n")
    rows = [line.split("\t") for line in command("score", run, tmp_path / "pairs.tsv").stdout.splitlines()]
    assert [(row[0], row[2], row[3]) for row in rows] == [("1", "abc", "C B A"), ("3", "de", "E D")]
    best = json.loads(command("predict", run, "--jsonl", input="abc\n").stdout)["log_prob"]
    assert float(rows[0][1]) == pytest.approx(best, abs=1e-5)


# --- train -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_settings_and_report_and_makes_nothing(command, workplace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = command(
        "train", workplace / "words.tsv", "--preset", "tiny", "--seed", "7", "--dry-run", "decoding.beam=3"
    )
    assert result.exit_code == 0
    assert 'cell = "gru"' in result.stdout
    assert "seed = 7" in result.stdout
    assert "beam = 3" in result.stdout
    assert "distinct sources" in result.stdout
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "again.toml").write_text(result.stdout.partition("\ntrain: ")[0])
    again = command("train", workplace / "words.tsv", "--config", tmp_path / "again.toml", "--dry-run")
    assert again.stdout == result.stdout


@pytest.mark.parametrize("columns", ["-,source,target", "-,target,source", "target,-,source"])
def test_columns_are_declared_in_any_order(command, tmp_path, columns):
    (tmp_path / "pairs.tsv").write_text("1\tab\tx\n2\tcd\ty\n")
    result = command("train", tmp_path / "pairs.tsv", "--columns", columns, "--dry-run")
    assert result.exit_code == 0, result.output
    names = ", ".join(f'"{name}"' for name in columns.split(","))
    assert f"columns = [{names}]" in result.stdout


def test_spaces_are_symbols_from_training_to_prediction(command, tmp_path):
    pairs = 'a b\tx y\n lead\tt \na  b\tq\n"quoted\tz\n'
    (tmp_path / "pairs.tsv").write_text(pairs)
    settings = ["data.dev_fraction=0.01", "training.max_epochs=150", "training.optimizer.learning_rate=1e-2"]
    trained = command(
        "train",
        tmp_path / "pairs.tsv",
        "--preset",
        "tiny",
        "--out",
        tmp_path / "run",
        "--dev",
        tmp_path / "pairs.tsv",
        *settings,
    )
    assert trained.exit_code == 0, trained.output
    result = command("predict", tmp_path / "run", input='a b\n lead\na  b\n"quoted\n')
    assert result.stdout == "x y\nt \nq\nz\n"
    assert " " in json.loads((tmp_path / "run" / "vocabulary.json").read_text())["source"]["symbols"]


def test_training_goes_to_runs_and_never_over_another_run(command, workplace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("train", workplace / "words.tsv", "--preset", "tiny", "training.max_steps=2")
    assert command(*arguments).exit_code == 0
    assert (tmp_path / "runs" / "words" / "model.safetensors").exists()
    result = command(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("unrolled: runs/words holds a run already; ")


def test_fine_tuning_keeps_vocabulary_and_settings(command, run, tmp_path):
    (tmp_path / "new.tsv").write_text("abc\tA B C\nfab\tF A B\nea\tE A\n")
    result = command("train", tmp_path / "new.tsv", "--from", run, "--out", tmp_path / "tuned", "training.max_steps=3")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "tuned" / "vocabulary.json").read_bytes() == (run / "vocabulary.json").read_bytes()
    assert "U+0066 f" in result.stderr


def test_finishing_a_finished_run_is_quick_and_keeps_it(command, workplace, tmp_path):
    out = tmp_path / "run"
    command("train", workplace / "words.tsv", "--preset", "tiny", "--out", out, "training.max_steps=4")
    before = (out / "model.safetensors").read_bytes()
    result = command("train", "--resume", out)
    assert result.exit_code == 0, result.output
    assert (out / "model.safetensors").read_bytes() == before


# --- failing well ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train"], 2, "train: expected a file of pairs, for example: unrolled train words.tsv"),
        (["train", "absent.tsv"], 2, "absent.tsv: no such file"),
        (["train", "words.tsv", "model.hidden_size=8"], 2, "model.hidden_size: unknown setting; did you mean"),
        (["train", "words.tsv", "more.tsv"], 2, "'more.tsv': expected an override such as training.seed=1"),
        (
            ["train", "words.tsv", "--preset", "tinny"],
            2,
            "preset: expected one of g2p, inflect, transliterate, translate-small, tiny",
        ),
        (["train", "words.tsv", "--config", "no.toml"], 2, "no.toml: cannot be read (No such file or directory)"),
        (["train", "words.tsv", "--minutes", "-1"], 2, "training.minutes: expected greater than 0, got -1.0"),
        (["train", "words.tsv", "--columns", "source"], 2, "no column is the target"),
        (["train", "words.tsv", "--preset", "tiny", "--from", "run"], 2, "--from takes the settings of its run"),
        (["train", "--resume", "run", "--seed", "2", "a.b=3"], 2, "leave out --seed, key.path=value"),
        (["train", "--resume", "absent"], 3, "absent is missing; expected a run folder"),
        (["predict", "absent"], 3, "absent is missing; expected a run folder"),
        (["predict", "run", "absent.txt"], 2, "absent.txt: no such file"),
        (["predict", "run", "words.tsv", "--out", "no/where.txt"], 2, "no/where.txt: the folder no does not exist"),
        (["evaluate", "run", "absent.tsv"], 2, "absent.tsv: no such file"),
        (["evaluate", "words.tsv", "words.tsv"], 3, "words.tsv is a file; expected a run folder"),
        (["compare", "words.tsv", "run"], 2, "compare: expected at least two runs or files of predictions, got 1"),
        (["score", "run", "bad.tsv"], 2, "bad.tsv, line 2: expected 2 columns (source, target), got 1; 1 line of 2"),
    ],
)
def test_errors_are_one_line_and_a_code(command, workplace, monkeypatch, arguments, code, message):
    monkeypatch.chdir(workplace)
    (workplace / "bad.tsv").write_text("a\tb\nc\n")
    result = command(*arguments)
    assert message in result.stderr
    assert result.stderr.startswith("unrolled: ")
    assert len(result.stderr.splitlines()) == 1
    assert (result.exit_code, result.stdout) == (code, "")


@pytest.mark.parametrize("arguments", [["--debug", "predict", "absent"]])
def test_debug_shows_the_traceback_too(command, arguments):
    result = command(*arguments)
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1] == "unrolled: absent is missing; expected a run folder"
    assert "Traceback" not in command("predict", "absent").stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ZeroDivisionError("oh\nno"), 70, "unrolled: internal error: ZeroDivisionError: oh (run again with --debug"),
        (KeyboardInterrupt(), 130, "unrolled: interrupted"),
        (PermissionError(13, "Permission denied", "x.txt"), 2, "unrolled: x.txt: Permission denied"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_whatever_happens_has_its_code(command, run, monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(unrolled.inference.loading.Run, "open", fail)
    result = command("predict", run, input="abc\n")
    assert result.exit_code == code
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == bool(message)
