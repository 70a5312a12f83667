"""The installed command as its own process: pipes, locales, signals, start-up time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from unrolled.commands import main; main()"]


def environment(**changes):
    return {**os.environ, "OMP_NUM_THREADS": "1", **changes}


def start(*arguments, **options):
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=options.pop("env", environment()),
        preexec_fn=_heed_interrupts if os.name == "posix" else None,
        **options,
    )


def _heed_interrupts():
    """A shell starts what runs in its background with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_pipe_is_answered_line_by_line_and_in_order(run):
    with start("predict", run) as process:
        for line, answer in ((b"abc\n", b"C B A\n"), (b"\n", b"\n"), (b"de\n", b"E D\n")):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == answer  # the next line was not sent yet
        words = [f"{'abcde'[number % 5]}{'abcde'[number // 5 % 5]}" for number in range(1000)]
        process.stdin.write("".join(f"{word}\n" for word in words).encode())
        process.stdin.flush()
        answers = [process.stdout.readline().decode() for _ in words]
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(timeout=30) == 0
    wrong = sum(answer != f"{word[1].upper()} {word[0].upper()}\n" for word, answer in zip(words, answers, strict=True))
    assert wrong <= 200  # the model may not know every word of two letters, but their order is kept
    assert dict(zip(words, answers, strict=True)) == dict(zip(words[:25], answers[:25], strict=True))


def test_a_reader_that_leaves_early_ends_it_quietly(run):
    with start("predict", run) as process:
        process.stdin.write(b"abc\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"de\n" * 10)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "cp1252"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_text_is_utf8_under_any_locale(run, tmp_path, locale):
    (tmp_path / "in.txt").write_bytes("’\n".encode())
    arguments = ["predict", run, tmp_path / "in.txt", "--jsonl"]
    result = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, env=environment(**locale), check=True
    )
    assert '"source": "’"' in result.stdout.decode("utf-8")
    assert "U+2019 ’" in result.stderr.decode("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_waiting_prediction_can_be_interrupted(run, number, code):
    with start("predict", run) as process:
        process.stdin.write(b"abc\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=30) == code
        assert len(process.stderr.read().splitlines()) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_training_saves_and_names_the_command_that_goes_on(workplace, tmp_path, number, code):
    out = tmp_path / "run"
    arguments = ["--preset", "tiny", "--out", out, "training.max_epochs=2000"]
    with start("train", workplace / "words.tsv", *arguments) as process:
        _wait_for(out / "metrics.jsonl", b'"StepTaken"')
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    last = errors.decode().splitlines()[-1]
    assert last.startswith("unrolled: interrupted at step ")
    assert last.endswith(f"go on with: unrolled train --resume {out}")
    resumed = start("train", "--resume", out)
    time.sleep(0.1)
    resumed.kill()
    resumed.communicate()
    assert (out / "resume").is_dir()


def _wait_for(path: Path, content: bytes) -> None:
    for _ in range(600):
        if path.exists() and content in path.read_bytes():
            return
        time.sleep(0.1)
    pytest.fail(f"{path} never held {content!r}")


@pytest.mark.skipif(os.name == "nt", reason="resource usage of POSIX")
def test_help_is_quick():
    """Seconds of the processor, which do not depend on what else the machine does."""
    import resource

    def seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.3


def test_plain_lines_where_there_is_no_terminal(workplace, tmp_path):
    arguments = [
        "train",
        workplace / "words.tsv",
        "--preset",
        "tiny",
        "--out",
        tmp_path / "run",
        "training.max_epochs=1",
    ]
    result = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, env=environment(), check=True, text=True
    )
    assert "\x1b" not in result.stderr
    assert "\r" not in result.stderr
    assert "dev loss" in result.stderr
    assert result.stdout == f"the run is in {tmp_path / 'run'}; use it with: unrolled predict {tmp_path / 'run'} FILE\n"
