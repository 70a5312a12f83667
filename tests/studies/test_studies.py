"""Each study at its tiny size, and the numbers that are known beforehand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from unrolled.commands.app import app
from unrolled.errors import ConfigError
from unrolled.studies import STUDIES, Interval, find, run


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of studies by name, each run once."""
    folder, done = tmp_path_factory.mktemp("studies"), {}

    def result(name):
        if name not in done:
            done[name] = run(STUDIES[name], folder, size="tiny"), folder / f"{name}.json", folder / f"{name}.png"
        return done[name]

    return result


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_states_measures_draws_and_judges(results, name):
    result, numbers, picture = results(name)
    stored = json.loads(numbers.read_text(encoding="utf-8"))
    assert re.search(r"\b(19|20)\d\d\b", stored["paper"])
    assert stored["claim"] == STUDIES[name].claim
    assert len(stored["rows"]) >= 2
    assert {len(row) for row in stored["rows"]} == {len(stored["columns"])}
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = result.lines()
    assert lines[-1].startswith("the claim ")
    assert lines[0].split()[0] == stored["columns"][0].split()[0]


def test_scores_have_the_predicted_variance(results):
    rows = results("softmax-scale")[0].rows
    assert [row[1].mean / row[0] for row in rows] == pytest.approx([1.0] * len(rows), rel=0.15)
    assert [row[2].mean for row in rows] == pytest.approx([1.0] * len(rows), rel=0.15)


def test_an_orthogonal_matrix_has_radius_and_stretch_one_and_forgets_more_slowly(results):
    rows = {row[0]: row for row in results("gradient-distance")[0].rows}
    _, radius, sigma, near, _ = rows["rnn, orthogonal"]
    assert (radius.mean, sigma.mean) == pytest.approx((1.0, 1.0))
    assert rows["rnn"][3].mean < near.mean < rows["lstm without forget gate"][3].mean


def test_a_gru_has_three_quarters_of_the_recurrent_weights(results):
    rows = {row[0]: row for row in results("gru-lstm")[0].rows}
    assert 4 * rows["gru"][1] == 3 * rows["lstm"][1]


def test_unmasked_decoders_are_found_and_masked_ones_are_not(results):
    rows = {row[0]: row for row in results("causal-mask")[0].rows}
    assert (rows["masked"][3], rows["not masked"][3]) == ("0 of 2", "2 of 2")


# --- intervals -------------------------------------------------------------------------------------------------------


def test_an_interval_by_student():
    found = Interval.of([1.0, 2.0, 3.0])
    half = 4.303 * 1.0 / np.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    assert str(found) == "2 ± 2.5"
    assert str(Interval.of([2.0])) == "2"


# --- the command -----------------------------------------------------------------------------------------------------


def test_an_unknown_study_is_refused():
    with pytest.raises(ConfigError, match=r"got 'softmax'.*"):
        find("softmax")


def test_the_command_lists_and_runs_studies(tmp_path):
    command = CliRunner()
    listed = command.invoke(app, ["study", "--list"]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(STUDIES)
    assert len(listed) == 10
    result = command.invoke(app, ["study", "softmax-scale", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == STUDIES["softmax-scale"].claim
    assert "\nthe claim held: " in result.stdout
    assert (tmp_path / "softmax-scale.json").is_file()
    assert command.invoke(app, ["study"]).exit_code == 2
