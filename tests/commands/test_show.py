"""`unrolled show` and `unrolled report`: pictures of a run, and one page about it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from unrolled.gallery import PICTURES, View, draw
from unrolled.inference import load
from unrolled.text import UNK

NOT_OF_THIS_RUN = {"heads": "has no heads", "confusions": "the predictions have no errors"}


@pytest.fixture(scope="module")
def view(run):
    return View(run)


@pytest.mark.parametrize("name", PICTURES)
def test_each_figure_is_drawn_or_says_why_not(view, name):
    if name in NOT_OF_THIS_RUN:
        with pytest.raises(ValueError, match=NOT_OF_THIS_RUN[name]):
            draw(name, view)
        return
    figure = draw(name, view)
    assert figure.axes
    assert any(
        "\n" in text.get_text() or len(text.get_text()) > 40 for text in [*figure.texts, figure._supxlabel] if text
    )


def test_the_strip_beside_the_attention_is_the_drop_of_each_symbol(run):
    model = load(run)
    drops = model.occlude("abc", "C B A")
    row, target = model.codec.encode_source("abc").astype(np.int64), model.codec.encode_target("C B A")
    hidden = row.copy()
    hidden[1] = UNK
    whole, without = (float(values.sum()) for values in model.engine.log_probs([row, hidden], [target, target]))
    assert drops.shape == (4,)
    assert drops[1] == pytest.approx(whole - without, abs=1e-4)
    assert drops[:3].min() > 1.0


def test_show_writes_into_the_run_and_says_where(command, run):
    result = command("show", run, "attention", "--input", "abcde")
    path = run / "figures" / "attention.png"
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_show_writes_svg_of_given_pairs(command, run, workplace, tmp_path):
    out = tmp_path / "curve.svg"
    result = command("show", run, "lengths", "--data", workplace / "words.tsv", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert b"<svg" in out.read_bytes()


def test_show_refuses_what_is_no_figure(command, run, tmp_path):
    result = command("show", run, "atention")
    assert result.exit_code == 2
    assert result.stderr.endswith("got 'atention'; did you mean attention?\n")
    assert command("show", run, "training", "--out", tmp_path / "no" / "a.png").exit_code == 2


def test_a_report_is_one_page_that_asks_for_nothing(command, run, workplace, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("abc\tC B A\nab\tB <b>\nba\tA A\n")
    result = command("report", run, "--data", pairs, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=\"(?!data:)|url\(|@import|<script", page)
    assert page.index("<h2>Findings</h2>") < page.index("<h2>Figures</h2>") < page.index("<h2>Worst items</h2>")
    assert page.count("<figure") == len(PICTURES) - 1
    assert "B &lt; b &gt;" in page.replace("&lt;b&gt;", "&lt; b &gt;")
    assert "has no heads" in page
