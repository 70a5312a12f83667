import dataclasses
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from unrolled import presets
from unrolled.config import Config
from unrolled.errors import CheckpointError, ConfigError, DataError
from unrolled.runs import (
    DataDigest,
    Environment,
    FileDigest,
    Run,
    decode_tensors,
    encode_tensors,
    use_command,
    write_atomic,
)

SHAPES = {"decoder.weight": (2, 3), "encoder.bias": (5,)}
ENVIRONMENT = Environment(
    versions={"numpy": "2"}, machine="x86", device="cpu", threads=1, processes=1, matrix_mode="default"
)


def digest(path):
    return FileDigest(path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest(), num_pairs=1)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n")
    return DataDigest(train=digest(path), dev=None, dev_lines=(3, 7))


def weights(offset=0.0):
    return {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + offset for name, shape in SHAPES.items()}


def create(path, data, **options):
    return Run.create(
        path, config=Config(), vocabulary={"symbols": ["ä", " "]}, data=data, environment=ENVIRONMENT, **options
    )


@pytest.fixture
def run(tmp_path, data):
    run = create(tmp_path / "run", data)
    run.write_weights(weights())
    return run


def test_everything_reads_back(run, data):
    opened = Run.open(run.path)
    assert opened.config == Config()
    assert opened.vocabulary() == {"symbols": ["ä", " "]}
    assert opened.data() == data
    assert opened.environment() == ENVIRONMENT
    read = opened.weights(SHAPES)
    assert read.keys() == SHAPES.keys()
    for name, array in weights().items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == np.float32


def test_weights_are_replaced(run):
    run.write_weights(weights(1.0))
    np.testing.assert_array_equal(Run.open(run.path).weights(SHAPES)["encoder.bias"], np.arange(5) + 1.0)


def test_environment_is_replaced(run):
    newer = dataclasses.replace(ENVIRONMENT, threads=2)
    run.write_environment(newer)
    assert Run.open(run.path).environment() == newer


def test_any_shape_and_order_of_array_survives():
    tensors = {"none": np.float32(3).reshape(()), "turned": np.arange(6.0).reshape(2, 3).T, "empty": np.zeros((0, 2))}
    read = decode_tensors(encode_tensors(tensors), Path("x"))
    for name, array in tensors.items():
        assert read[name].shape == array.shape
        np.testing.assert_array_equal(read[name], array)


# --- refusals, each by name ---


def rewrite_weights(run, tensors):
    (run.path / "model.safetensors").write_bytes(encode_tensors(tensors))


def test_a_renamed_tensor_is_unknown(run):
    tensors = weights()
    tensors["decoder.wait"] = tensors.pop("decoder.weight")
    rewrite_weights(run, tensors)
    with pytest.raises(CheckpointError, match=r"unknown tensor decoder\.wait \(and 1 missing, first decoder\.weight\)"):
        run.weights(SHAPES)


def test_a_removed_tensor_is_missing(run):
    tensors = weights()
    del tensors["encoder.bias"]
    rewrite_weights(run, tensors)
    with pytest.raises(CheckpointError, match=r"missing tensor encoder\.bias"):
        run.weights(SHAPES)


def test_a_tensor_of_another_shape(run):
    rewrite_weights(run, weights() | {"encoder.bias": np.zeros(4, np.float32)})
    with pytest.raises(CheckpointError, match=r"encoder\.bias has shape \(4,\), expected \(5,\)"):
        run.weights(SHAPES)


def test_non_finite_values_are_refused(run):
    run.write_weights(weights() | {"encoder.bias": np.full(5, np.nan, np.float32)})
    with pytest.raises(CheckpointError, match=r"encoder\.bias holds non-finite"):
        run.weights(SHAPES)


def test_other_values_under_the_right_names_are_an_alteration(run):
    rewrite_weights(run, weights(0.5))
    with pytest.raises(CheckpointError, match=r"model\.safetensors was altered: expected SHA-256"):
        run.weights(SHAPES)


def edit_config(run, **changes):
    path = run.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_future_format(run):
    edit_config(run, format=999)
    with pytest.raises(CheckpointError, match="format 999 is newer than this program"):
        Run.open(run.path)


def test_a_config_without_format(run):
    edit_config(run, format=None)
    with pytest.raises(CheckpointError, match="no format number"):
        Run.open(run.path)


def test_a_missing_config(run):
    (run.path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        Run.open(run.path)


def test_an_edited_config(run):
    edit_config(run, version="0.0.1")
    with pytest.raises(CheckpointError, match=r"config\.json was altered"):
        Run.open(run.path)


@pytest.mark.parametrize("name", ["vocabulary.json", "manifest.json", "model.safetensors"])
def test_a_missing_file_is_named(run, name):
    (run.path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        opened = Run.open(run.path)
        opened.vocabulary()
        opened.weights(SHAPES)


def test_a_path_that_is_no_folder(tmp_path):
    with pytest.raises(CheckpointError, match="is missing; expected a run folder"):
        Run.open(tmp_path / "nothing")
    (tmp_path / "model.pt").write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match="is a file; expected a run folder"):
        Run.open(tmp_path / "model.pt")


# --- damage ---


def test_each_flipped_byte_and_each_truncation_is_found(run):
    path = run.path / "model.safetensors"
    intact = path.read_bytes()
    for position in range(len(intact)):
        flipped = bytearray(intact)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            run.weights(SHAPES)
        path.write_bytes(intact[:position])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            run.weights(SHAPES)


def test_a_file_cut_by_one_byte_tells_the_sizes(run):
    path = run.path / "model.safetensors"
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    with pytest.raises(CheckpointError, match=rf"damaged: expected {len(intact)} bytes, got {len(intact) - 1}"):
        run.weights(SHAPES)


def test_damage_offers_the_complete_training_state(run):
    run.states.save(40, {}, {"weights-40": weights})
    (run.path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"state of step 40 is complete .*: unrolled train --resume .*run"):
        run.weights(SHAPES)


def test_a_kill_between_manifest_and_file_leaves_a_run_that_verifies(run, monkeypatch):
    from unrolled.runs import manifest

    write = manifest.write_atomic

    def killed(path, content):
        if path.name == "model.safetensors":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(manifest, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        run.write_weights(weights(1.0))
    np.testing.assert_array_equal(Run.open(run.path).weights(SHAPES)["encoder.bias"], np.arange(5))


# --- nothing is executed ---


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def zipped(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("pack", [bytes, zipped])
def test_a_pickle_is_refused_and_not_run(run, tmp_path, protocol, pack):
    marker = tmp_path / "marker"
    (run.path / "model.safetensors").write_bytes(pack(pickle.dumps(Bomb(marker), protocol=protocol)))
    reason = "zip archive" if pack is zipped else "pickle" if protocol >= 2 else "not a safetensors file"
    with pytest.raises(CheckpointError, match=rf"model\.safetensors is refused: it is .*{reason}"):
        run.weights(SHAPES)
    assert not marker.exists()


def test_a_header_of_128_bytes_is_no_pickle():
    """Its first byte is 0x80, as a pickle's."""
    tensors = {"w": np.zeros(1, np.float32)}
    content = encode_tensors(tensors)
    size = int.from_bytes(content[:8], "little")
    padded = (128).to_bytes(8, "little") + content[8 : 8 + size].ljust(128) + content[8 + size :]
    np.testing.assert_array_equal(decode_tensors(padded, Path("x"))["w"], tensors["w"])


# --- overwriting ---


def test_overwriting_is_refused_unless_asked(run, data):
    with pytest.raises(ConfigError, match="holds a run already"):
        create(run.path, data)
    assert Run.open(run.path).has_weights
    run.states.save(1, {}, {})
    (run.path / "picture.png").touch()
    again = create(run.path, data, overwrite=True)
    assert not again.has_weights
    assert again.states.steps() == []
    assert (run.path / "picture.png").exists()


def test_a_run_with_only_a_training_state_is_worth_keeping(tmp_path, data):
    run = create(tmp_path / "run", data)
    run.states.save(1, {}, {})
    with pytest.raises(ConfigError, match="holds a run already"):
        create(run.path, data)


def test_a_run_that_never_started_may_be_replaced(tmp_path, data):
    create(tmp_path / "run", data)
    create(tmp_path / "run", data)
    assert not Run.open(tmp_path / "run").has_weights


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_folders_are_left_alone(tmp_path, data, overwrite):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="not empty and holds no run"):
        create(tmp_path, data, overwrite=overwrite)


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
@pytest.mark.parametrize("content", ['{"format": "esm"}', '{"files": {"a.js": 1}}', '{"files": 1}', "[]", "no JSON"])
def test_a_file_with_the_name_of_one_of_ours_makes_no_run(tmp_path, data, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match="not empty and holds no run"):
        create(tmp_path, data, overwrite=True)
    assert (tmp_path / name).read_text() == content


def test_a_pipe_is_written_into_and_a_link_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(tmp_path / "pipe", b"content")
    assert os.read(reader, 99) == b"content"
    os.close(reader)
    with (tmp_path / "log").open("ab") as log:
        log.write(b"earlier ")
        log.flush()
        write_atomic(Path(f"/dev/fd/{log.fileno()}"), b"later")
    assert (tmp_path / "log").read_bytes() == b"earlier later"
    script = "from pathlib import Path; from unrolled.runs import write_atomic; write_atomic(Path('/dev/stdout'), b'!')"
    with (tmp_path / "log").open("ab") as log:
        subprocess.run([sys.executable, "-c", script], stdout=log, check=True)
    assert (tmp_path / "log").read_bytes() == b"earlier later!"
    (tmp_path / "log").unlink()
    (tmp_path / "link").symlink_to("file")
    for content in (b"new", b"newer"):
        write_atomic(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "file"}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no memory file system")
def test_files_in_memory_are_files():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for content in (b"old", b"new"):
            write_atomic(Path(folder) / "a", content)
        assert (Path(folder) / "a").read_bytes() == b"new"


def test_what_uses_a_run_can_be_pasted_into_a_shell():
    assert use_command(Path("my runs/a"), Config()) == "unrolled predict 'my runs/a' FILE"
    assert use_command(Path("a"), presets.get("char-lm")) == "unrolled generate a --prompt TEXT"


def test_leftovers_are_swept_only_by_the_writer(run):
    leftover = run.path / ".model.safetensors.1234.partial"
    leftover.touch()
    Run.open(run.path)
    assert leftover.exists()
    Run.open(run.path, for_writing=True)
    assert not leftover.exists()


# --- data ---


def test_changed_data_is_named(data):
    data.train.check()
    Path(data.train.path).write_text("a\tc\n")
    with pytest.raises(DataError, match=r"pairs\.tsv: changed since the run started"):
        data.train.check()
    Path(data.train.path).unlink()
    with pytest.raises(DataError, match=r"pairs\.tsv: the run was trained on this file, which is gone"):
        data.train.check()


def test_a_moved_file_is_taken_if_it_is_the_same(data, tmp_path):
    moved = Path(data.train.path).rename(tmp_path / "moved.tsv")
    data.train.check(moved)
    moved.write_text("a\tc\n")
    with pytest.raises(DataError, match=r"moved\.tsv: changed"):
        data.train.check(moved)


def test_a_dev_file_reads_back(data, tmp_path):
    both = dataclasses.replace(data, dev=data.train)
    assert create(tmp_path / "run", both).data() == both
