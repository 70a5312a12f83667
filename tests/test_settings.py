"""Settings: precedence, overrides, and messages that name every problem at once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unrolled import presets
from unrolled.config import Config, RecurrentEncoder, Seq2Seq, TransformerEncoder
from unrolled.errors import ConfigError
from unrolled.settings import parse_override, resolve, to_toml


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def problem(**layers):
    with pytest.raises(ConfigError) as caught:
        resolve(**layers)
    return str(caught.value)


def test_nothing_given_is_the_defaults():
    assert resolve() == Config()


def test_each_layer_wins_over_the_one_below(tmp_path):
    file = write(tmp_path / "run.toml", "[training]\nseed = 2\naccumulate = 2\nbatch_tokens = 22\n")
    base = Config.model_validate({"training": {"max_steps": 1, "seed": 1, "accumulate": 1, "max_batch_size": 11}})
    config = resolve(
        base, file=file, overrides=["training.seed=3", "training.accumulate=3"], flags={"training.seed": 4}
    )
    training = config.training
    assert (training.seed, training.accumulate, training.batch_tokens, training.max_batch_size) == (4, 3, 22, 11)
    assert training.max_steps == 1


def test_flags_that_were_not_given_change_nothing():
    assert resolve(flags={"training.seed": None, "training.minutes": None}) == Config()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=256", ("a.b", 256)),
        ("a=2e-3", ("a", 2e-3)),
        ("a=true", ("a", True)),
        ("a=dot", ("a", "dot")),
        ('a="dot"', ("a", "dot")),
        ('a=["x", "y"]', ("a", ["x", "y"])),
        ("a=x=y", ("a", "x=y")),
        ("a= 3 ", ("a", 3)),
        ("a=source,target", ("a", "source,target")),
        ("a=-", ("a", "-")),
        ("a=", ("a", "")),
    ],
)
def test_override_values_are_toml_or_bare_words(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("model.encoder.type=transfomer", "got 'transfomer'; did you mean model.encoder.type=transformer?"),
        ("model.encoder=transformer", "expected a table of settings, such as model.encoder.type=transformer, got"),
        ("model.encoder=mamba", "model.encoder: expected a table of settings, got 'mamba'"),
    ],
)
def test_a_type_that_is_nearly_named_is_suggested(override, hint):
    assert hint in problem(overrides=[override])


@pytest.mark.parametrize("text", ["seed", "=3", "a..b=3", ".a=3", "a b=3", "--seed=3"])
def test_what_is_no_override_is_refused(text):
    with pytest.raises(ConfigError, match=r"expected an override such as training\.seed=1"):
        parse_override(text)


def test_later_overrides_win():
    assert resolve(overrides=["training.seed=1", "training.seed=2"]).training.seed == 2


def test_switching_a_type_forgets_the_fields_of_the_old_one():
    base = Config(model=Seq2Seq(encoder=RecurrentEncoder(hidden_size=31, dropout=0.7)))
    config = resolve(base, overrides=["model.encoder.type=transformer", "model.encoder.d_ff=64"])
    assert config.model.encoder == TransformerEncoder(d_ff=64)


def test_naming_the_type_that_is_there_keeps_its_fields():
    base = Config(model=Seq2Seq(encoder=RecurrentEncoder(hidden_size=31)))
    assert resolve(base, overrides=["model.encoder.type=recurrent"]) == base


def test_a_type_that_is_no_union_keeps_its_neighbours():
    base = resolve(overrides=["training.schedule.warmup_steps=7"])
    schedule = resolve(base, overrides=["training.schedule.type=constant"]).training.schedule
    assert (schedule.type, schedule.warmup_steps) == ("constant", 7)


def test_switching_a_type_reports_fields_that_a_person_set(tmp_path):
    file = write(tmp_path / "run.toml", '[model.encoder]\ncell = "gru"\n')
    message = problem(file=file, overrides=["model.encoder.type=transformer"])
    assert message == f"model.encoder.cell (in {file}): not a setting of type transformer"


def test_an_end_of_training_replaces_the_end_of_the_base():
    training = resolve(overrides=["training.minutes=3"]).training
    assert (training.minutes, training.max_epochs, training.max_steps) == (3.0, None, None)
    both = resolve(overrides=["training.minutes=3", "training.max_steps=9"]).training
    assert (both.minutes, both.max_steps) == (3.0, 9)


def test_none_empties_what_may_be_empty_and_is_a_word_elsewhere():
    base = resolve(overrides=["data.source.max_symbols=9"])
    assert resolve(base, overrides=["data.source.max_symbols=none"]).data.source.max_symbols is None
    assert resolve(overrides=["model.decoder.attention=none"]).model.decoder.attention == "none"
    assert problem(overrides=["training.seed=none"]) == "training.seed: expected a valid integer, got 'none'"


def test_removing_the_only_end_is_an_error():
    message = problem(overrides=["training.max_epochs=none"])
    assert message == "training: training has no end: set max_epochs, max_steps or minutes"


def test_lists_are_written_with_commas():
    assert resolve(overrides=["data.columns=source,-,target"]).data.columns == ("source", "-", "target")
    message = problem(overrides=["data.columns=source,tgt"])
    assert message == "data.columns[1]: expected 'source', 'target', 'features' or '-', got 'tgt'"


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("model.hidden_size=256", "model.encoder.hidden_size or model.decoder.hidden_size"),
        ("model.encoder.hiden_size=256", "model.encoder.hidden_size"),
        ("training.sed=3", "training.seed"),
        ("training.learning_rate=1", "training.optimizer.learning_rate"),
        ("learning_rate=1", "training.optimizer.learning_rate"),
        ("trainin.seed=1", "training"),
    ],
)
def test_did_you_mean(override, meant):
    path = override.partition("=")[0]
    path = path if meant != "training" else "trainin"
    assert problem(overrides=[override]) == f"{path}: unknown setting; did you mean {meant}?"


def test_nothing_like_it_gives_no_hint():
    assert problem(overrides=["zzzzzz=1"]) == "zzzzzz: unknown setting"


def test_all_problems_are_reported_at_once_in_one_line(tmp_path):
    file = write(tmp_path / "run.toml", "[training]\nseed = -1\n[decoding]\nbeam = 'wide'\n")
    message = problem(file=file, overrides=["model.encoder.cell=mamba", "data.colums=1"])
    assert "\n" not in message
    assert message.startswith("4 settings are wrong: ")
    assert f"training.seed (in {file}): expected greater than or equal to 0, got -1" in message
    assert f"decoding.beam (in {file}): expected a valid integer, got 'wide'" in message
    assert "model.encoder.cell: expected 'rnn', 'lstm' or 'gru', got 'mamba'" in message
    assert "data.colums: unknown setting; did you mean data.columns?" in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.encoder.type=conv", "model.encoder.type: expected recurrent or transformer or convolution, got 'conv'"),
        ("model.encoder=conv", "model.encoder: expected a table of settings, got 'conv'"),
        ("training=3", "training: expected a table of settings, got 3"),
        ("model.encoder.hidden_size.x=3", "model.encoder.hidden_size: expected a valid integer, got {'x': 3}"),
        ("training.minutes=inf", "training.minutes: expected a finite number, got inf"),
    ],
)
def test_senseless_values(override, message):
    assert problem(overrides=[override]) == message


@pytest.mark.parametrize(("side", "data"), [("encoder", "source"), ("decoder", "target")])
def test_learned_positions_cover_what_is_trained_on(side, data):
    overrides = [f"model.{side}.type=transformer", f"model.{side}.positions=learned", f"model.{side}.max_positions=255"]
    with pytest.raises(ConfigError, match=rf"max_positions=255, below data\.{data}\.max_length=256"):
        resolve(overrides=overrides)
    assert resolve(overrides=[*overrides, f"data.{data}.max_length=255"]).data


def test_a_softmax_of_a_sample_is_for_plain_text():
    text = ["data.type=text", "model.type=language_model", "model.decoder.type=recurrent"]
    sample = "training.softmax_sample=100"
    assert problem(overrides=[sample]) == "training.softmax_sample is for data.type=text, got pairs"
    assert problem(overrides=[*text, sample]) == "training.softmax_sample needs training.label_smoothing=0"
    assert resolve(overrides=[*text, sample, "training.label_smoothing=0"]).training.softmax_sample == 100
    few = problem(overrides=[*text, "training.softmax_sample=99"])
    assert few == "training.softmax_sample: expected greater than or equal to 100, got 99"


def test_sizes_that_do_not_fit_name_both():
    message = problem(overrides=["model.decoder.attention=dot"])
    assert "attention=dot needs equal sizes, got encoder output 512 and decoder hidden_size 256" in message


def test_files_that_cannot_be_read(tmp_path):
    absent, broken, latin = tmp_path / "no.toml", tmp_path / "broken.toml", tmp_path / "latin.toml"
    assert problem(file=absent) == f"{absent}: cannot be read (No such file or directory)"
    assert problem(file=write(broken, "[training\n")).startswith(f"{broken}: not a TOML file: Expected ']'")
    latin.write_bytes(b"# caf\xe9\n")
    assert problem(file=latin).startswith(f"{latin}: not a TOML file: 'utf-8' codec")


def test_a_byte_order_mark_is_dropped(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf[training]\nseed = 5\n")
    assert resolve(file=file).training.seed == 5


ALL = [preset() for preset in presets.PRESETS.values()]
PAIRS = st.sampled_from([config for config in ALL if config.data.type == "pairs"])
TEXTS = st.sampled_from([config for config in ALL if config.data.type == "text"])
FOR_TEXTS = st.lists(
    st.sampled_from(
        ["model.decoder.dropout=0.5", 'data.document_end="\\n\\t\\u0001"', "data.max_symbols=9", "data.context=7"]
    ),
    max_size=4,
)
FOR_PAIRS = st.lists(
    st.sampled_from(
        [
            "model.encoder.type=transformer",
            "model.decoder.type=transformer",
            "data.columns=-,source,target",
            "data.target.max_length=40",
            "data.header=true",
            'data.encoding="a\\"b\\\\c"',
            "training.minutes=0.5",
            "training.optimizer.epsilon=1e-30",
            "decoding.max_length=9",
        ]
    ),
    max_size=4,
)


@given(st.tuples(PAIRS, FOR_PAIRS) | st.tuples(TEXTS, FOR_TEXTS))
def test_toml_says_everything_that_a_config_says(tmp_path_factory, base_and_overrides):
    base, overrides = base_and_overrides
    config = resolve(base, overrides=overrides)
    file = write(tmp_path_factory.mktemp("toml") / "run.toml", to_toml(config))
    assert resolve(file=file) == config


def test_presets_are_found_by_name_and_described():
    assert presets.get("tiny") == presets.tiny()
    names = "g2p inflect transliterate translate-small tiny char-lm word-lm gpt-tiny music adding copy-memory"
    assert list(presets.describe()) == names.split()
    assert all(text.endswith(".") for text in presets.describe().values())
    with pytest.raises(ConfigError, match=r"^preset: expected one of g2p, .*, got 'g2pp'; did you mean g2p\?$"):
        presets.get("g2pp")


def test_translate_small_is_small():
    from unrolled.parameters import Sizes, inventory

    config = presets.get("translate-small")
    symbols = config.data.source.num_subwords + 4
    parameters = inventory(config.model, Sizes(source=symbols, features=0, target=symbols))
    assert 2.3e6 < sum(math.prod(parameter.shape) for parameter in parameters) < 2.5e6
