"""Music and tasks of memory through the command line: trained, resumed, measured, and never searched."""

import json
import random

import pytest

from unrolled import presets
from unrolled.errors import ConfigError
from unrolled.inference import FrameModel, load
from unrolled.settings import resolve
from unrolled.training import train
from unrolled.training.events import StepTaken

SMALL = ["model.decoder.hidden_size=16", "training.max_steps=30", "training.evaluate_every=10"]


@pytest.fixture(scope="module")
def music(tmp_path_factory):
    """Pieces that walk over twelve keys, two at a time."""
    draw = random.Random(0)

    def piece():
        start, way = draw.randrange(12), draw.choice([1, 5])
        return [
            sorted({(start + way * step) % 12, (start + way * step + 4) % 12}) for step in range(draw.randint(3, 9))
        ]

    path = tmp_path_factory.mktemp("music") / "walks.json"
    path.write_text(json.dumps({part: [piece() for _ in range(40)] for part in ("train", "valid", "test")}))
    return path


@pytest.fixture(scope="module")
def run(music):
    config = resolve(presets.get("music"), overrides=["data.num_keys=12", *SMALL, "training.max_steps=200"])
    train(music, config=config, out=music.parent / "run")
    return music.parent / "run"


def test_music_is_learnt_and_measured_in_nats_a_frame(command, music, run):
    report = json.loads(command("evaluate", run, music, "--json").stdout)
    assert report["unit"] == "nats a frame"
    assert report["num_sequences"] == 40
    loss = report["loss"]
    assert loss["low"] < loss["value"] < loss["high"] < 4.0  # two keys of twelve, each for itself: 5.4
    lines = command("evaluate", run, music).stdout
    assert f"nats a frame  {loss['value']:.4f} [{loss['low']:.4f}, {loss['high']:.4f}]" in lines
    numpy = json.loads(command("evaluate", run, music, "--json", "--engine", "numpy").stdout)
    assert numpy["loss"]["value"] == pytest.approx(loss["value"], rel=1e-5)


def test_no_search_and_no_text(command, music, run):
    for name in ("predict", "generate", "score"):
        result = command(name, run, *([] if name == "generate" else [music]))
        assert result.exit_code == 2
        assert "unrolled evaluate" in result.stderr
        assert result.stderr.count("\n") == 1
    assert "bernoulli head over vectors, which offers no search" in command("predict", run, music).stderr
    both = command("evaluate", run, music, "--with", run)
    assert "bernoulli head over vectors" in both.stderr
    assert "leave out --beam" in command("evaluate", run, music, "--beam", "2").stderr
    compared = command("compare", music, run, run)
    assert "is a model of vectors: use unrolled evaluate" in compared.stderr


def test_what_it_was_not_trained_on_is_refused(command, run, music, tmp_path):
    result = command("evaluate", run, "task:adding")
    assert (
        result.stderr
        == f"unrolled: task:adding: {run} was trained on a file of music and can be tested on nothing else\n"
    )
    (tmp_path / "other.json").write_text('{"test": [[[12]]]}')
    assert (
        "test piece 1, step 1: expected keys from 0 to 11, got [12]"
        in command("evaluate", run, tmp_path / "other.json").stderr
    )
    half = command("evaluate", run, music, "--engine", "bfloat16")
    assert half.stderr == f"unrolled: {run}: a model of vectors computes in float32; use engine torch or numpy\n"
    dev = command("train", music, "--preset", "music", "--dev", music, "--out", tmp_path / "x")
    assert "has a dev part of its own" in dev.stderr
    pairs = command("train", music, "--preset", "tiny", "--out", tmp_path / "x", "model.type=frames")
    assert "data.type=pairs does not go with model.type=frames" in pairs.stderr


@pytest.mark.parametrize("task", ["adding", "copy-memory"])
def test_a_task_of_vectors_needs_no_preset(command, task, tmp_path):
    trained = command("train", f"task:{task}", "--out", tmp_path / "run", *SMALL, "training.max_batch_size=8")
    assert trained.exit_code == 0, trained.stderr
    assert "at best without reading the inputs" in trained.stderr + trained.stdout
    report = json.loads(command("evaluate", tmp_path / "run", f"task:{task}", "--json").stdout)
    assert report["num_sequences"] == 1000
    assert report["best_blind"] == pytest.approx({"adding": 1 / 6, "copy-memory": 0.519860}[task], rel=1e-5)
    assert report["loss"]["value"] > 0.5 * report["best_blind"]  # thirty steps teach nothing


def test_a_run_of_a_task_resumes_exactly(tmp_path):
    class StopError(Exception):
        pass

    def stop(event):
        if isinstance(event, StepTaken) and event.step == 17:
            raise StopError

    config = resolve(presets.get("adding"), overrides=[*SMALL, "training.save_every=5", "training.max_batch_size=4"])
    train("task:adding", config=config, out=tmp_path / "whole")
    with pytest.raises(StopError):
        train("task:adding", config=config, out=tmp_path / "part", listeners=[stop])
    train(resume=tmp_path / "part")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "part")]
    assert weights[0] == weights[1]
    assert isinstance(load(tmp_path / "part"), FrameModel)


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("adding", ["model.head=bernoulli"], "model.head: adding needs regression, got bernoulli"),
        ("music", ["model.head=regression"], "model.head: music needs bernoulli, got regression"),
        ("music", ["training.label_smoothing=0.1"], "models of vectors have label_smoothing=0 and dev_metric=loss"),
        ("music", ["training.dev_metric=error_rate"], "models of vectors have label_smoothing=0"),
        ("tiny", ["data.task.type=adding"], "task=adding is made of vectors, not of pairs; start from --preset adding"),
        ("music", ["training.feeding.type=free_running"], "free_running is for model.type=seq2seq, got frames"),
    ],
)
def test_what_does_not_go_together_is_named(preset, overrides, message):
    with pytest.raises(ConfigError) as caught:
        resolve(presets.get(preset), overrides=overrides)
    assert message in str(caught.value)
