"""Figures: what is on them, files that open, and nothing global touched."""

import itertools
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from unrolled import figures
from unrolled.errors import ConfigError, ShapeError
from unrolled.figures import cells
from unrolled.metrics import Confusion, Estimate

SYMBOLS = ["$$", "a_b$", "\\frac", "<b>", " ", "\ufffe", "\u05d0", ""]
SHOWN = ["$$", "a_b$", "\\frac", "<b>", "␣", "U+FFFE", "\u05d0", "∅"]
STEPS = [{"step": step, "loss": 3 / step, "learning_rate": 1e-3} for step in range(1, 31)]


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])


def estimates(*values: float) -> list[Estimate]:
    return [Estimate(value, value / 2, value * 2) for value in values]


FIGURES: dict[str, Callable[[], Figure]] = {
    "attention": lambda: figures.attention(rows(3, 5), "ab $c", "x\\y", title="$x_1$", occlusion=[1, -1, 0, 2, 3]),
    "one cell": lambda: figures.attention([[1.0]], ["a"], ["b"], occlusion=[0.0]),
    "a very long source": lambda: figures.attention(rows(2, 700), "s" * 700, "ab"),
    "attention_heads": lambda: figures.attention_heads(rows(2, 3, 5, 7), "source$", "targe", title="heads"),
    "training_curves": lambda: figures.training_curves(STEPS),
    "gates_over_time": lambda: figures.gates_over_time({"forget": rows(4, 6), "$i$": rows(4, 6)}, "word"),
    "gradient_norms": lambda: figures.gradient_norms({"$h$": rows(9)}, {"encoder": rows(3), "_d": rows(4)}),
    "vanished": lambda: figures.gradient_norms({"h": np.zeros(3)}, {}),
    "jacobian_spectrum": lambda: figures.jacobian_spectrum(
        [0.5 + 0.5j, 0.5 - 0.5j], [1.0, 0.7], product_norms=[0.9, 0.5], bounds=[1.0, 1.0]
    ),
    "length_curve": lambda: figures.length_curve(
        [1, 2, 3], {"$a$": estimates(0.1, 0.2, 0.3), "_b": estimates(0.3, 0.2, 0.1)}, counts=[5, 9, 2]
    ),
    "one length": lambda: figures.length_curve([4], {"a": estimates(0.1)}, counts=[5], training_lengths=[2, 4]),
    "symbol_confusion": lambda: figures.symbol_confusion([Confusion(9, "$a$", "b"), Confusion(2, "", " ")]),
}


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_files_open_and_nothing_global_changes(name: str, suffix: str, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    path = tmp_path / "new folder" / f"picture{suffix}"
    figures.save(FIGURES[name](), path)
    assert dict(matplotlib.rcParams) == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    if suffix == ".svg":
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    else:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off(name: str) -> None:
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= -0.01
    assert box.y0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_what_to_see_in_letters_that_can_be_read(name: str) -> None:
    figure = FIGURES[name]()
    assert max(len(text) for text in texts(figure)) > 80
    sizes = [text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
    assert min(sizes) >= 6.5


@pytest.mark.parametrize("name", ["attention", "attention_heads"])
def test_heading_and_caption_stand_clear_of_the_maps(name: str) -> None:
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    maps = [axes.get_tightbbox() for axes in figure.axes]
    caption, heading = (text.get_window_extent() for text in figure.texts)
    assert heading.y0 > max(box.y1 for box in maps)
    assert caption.y1 < min(box.y0 for box in maps)


def test_symbols_that_break_pictures_are_literal_and_named_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"U\+FFFE; shown as codes") as caught:
        figure = figures.attention(rows(2, 8), SYMBOLS, ["\ufffe", "$"], title="$\\frac <b>\x00")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == SHOWN
    assert [text.get_text() for text in axes.get_yticklabels()] == ["U+FFFE", "$"]
    assert "$\\frac <b>U+0000" in texts(figure)
    literal = [text for text in figure.findobj(matplotlib.text.Text) if "$" in text.get_text()]
    assert literal
    assert not any(text.get_parse_math() for text in literal)
    figures.save(figure, tmp_path / "a.png")  # warnings are errors: drawing adds none
    figures.save(figure, tmp_path / "a.svg")
    content = (tmp_path / "a.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(content)
    assert "&lt;b&gt;" in content
    assert "<b>" not in content


def test_svg_text_is_escaped_also_where_it_stays_text(tmp_path: Path) -> None:
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figures.save(figures.attention(rows(1, 2), ["<b>", "&"], ["]]>"]), tmp_path / "a.svg")
    written = [element.text for element in ElementTree.parse(tmp_path / "a.svg").iter() if element.tag.endswith("text")]
    assert {"<b>", "&", "]]>"} <= set(written)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(2, 8), (1, 1), (30, 4), (3, 90), (2, 700)])
def test_labels_are_in_line_with_their_cells(num_rows: int, num_columns: int) -> None:
    figure = figures.attention(
        rows(num_rows, num_columns), "s" * num_columns, "t" * num_rows, occlusion=[1] * num_columns
    )
    figure.draw_without_rendering()
    axes = figure.axes[0]
    strip = next(child for child in axes.child_axes if child.patches)
    for label, column in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True):
        box = label.get_window_extent()
        centre = axes.transData.transform((column, 0))[0]
        assert abs((box.x0 + box.x1) / 2 - centre) < 3
        assert abs(strip.transData.transform((column, 0))[0] - centre) < 1e-6
    for label, row in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True):
        box = label.get_window_extent()
        assert abs((box.y0 + box.y1) / 2 - axes.transData.transform((0, row))[1]) < 4
    assert axes.images[0].get_array().shape == (num_rows, num_columns)


@pytest.mark.parametrize("symbols", [["ab$cd", "efghij", "k", "lmnop"] * 9, list("a quick brown fox" * 40)])
def test_labels_never_run_into_each_other(symbols: list[str]) -> None:
    figure = figures.attention(rows(len(symbols), len(symbols)), symbols, symbols)
    figure.draw_without_rendering()
    for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) > 1
        assert not any(first.overlaps(second) for first, second in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("cell", "shared"), [(0.4, 1), (0.14, 1), (0.13, 2), (0.07, 2), (0.06, 5), (0.0141, 10), (0.001, 140)]
)
def test_small_cells_share_labels(cell: float, shared: int) -> None:
    assert cells._every(cell) == shared


def test_cells_keep_one_size_until_the_picture_is_full() -> None:
    short, longer, full = (figures.attention(rows(n, n), "s" * n, "t" * n).get_size_inches() for n in (10, 20, 300))
    assert longer[0] - short[0] == pytest.approx(4.0, abs=0.1)
    assert max(full) < 16


def test_colours_mean_the_same_in_every_picture() -> None:
    images = [figures.attention(weights, "ab", "c").axes[0].images[0] for weights in ([[0.1, 0.1]], [[0.0, 1.0]])]
    assert {image.get_clim() for image in images} == {(0.0, 1.0)}
    luma = np.array([0.299, 0.587, 0.114]) @ images[0].get_cmap()(np.linspace(0, 1, 50))[:, :3].T
    assert (np.diff(luma) < 0).all()


def test_the_caption_warns_of_reading_weights_as_importances() -> None:
    def caption(*args: object, **options: object) -> str:
        return " ".join(max(texts(figures.attention(*args, **options)), key=len).split())  # type: ignore[arg-type]

    assert "Weights are not importances: hide symbols" in caption([[1.0]], "a", "b")
    assert "Weights are not importances: see the occlusion strip" in caption([[1.0]], "a", "b", occlusion=[1])
    assert "logical order" not in caption([[1.0]], "a", "b")
    assert "logical order: its first symbol is at the left" in caption([[0.5, 0.5]], "אב", "b")
    axes = figures.attention([[0.5, 0.5]], "אב", "b").axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["א", "ב"]


def test_occlusion_bars_have_the_given_heights() -> None:
    axes = figures.attention(rows(1, 3), "abc", "x", occlusion=[0.5, -0.25, 2.0]).axes[0]
    strip = next(child for child in axes.child_axes if child.patches)
    assert [bar.get_height() for bar in strip.patches] == [0.5, -0.25, 2.0]


def test_heads_stand_by_layer_and_number() -> None:
    weights = rows(2, 3, 4, 5)
    panels = figures.attention_heads(weights, "abcde", "wxyz").axes
    for place, (layer, head) in enumerate(np.ndindex(2, 3)):
        assert np.array_equal(panels[place].images[0].get_array(), weights[layer, head])
        assert f"{layer + 1}.{head + 1}" in [text.get_text() for text in panels[place].texts]
        assert [bool(panels[place].get_xticklabels()), bool(panels[place].get_yticklabels())] == [layer == 0, head == 0]


def test_training_curves_show_steps_evaluations_and_skipped_steps() -> None:
    records = [
        *STEPS,
        {"step": 5, "loss": 0.8, "metric": "error_rate", "value": 0.5, "is_best": True},
        {"step": 10, "loss": 0.5, "metric": "error_rate", "value": 0.4, "is_best": True},
        {"step": 20, "loss": None, "metric": "error_rate", "value": 0.6, "is_best": False},
        {"step": 21, "reason": "not finite", "in_a_row": 1},
        {"message": "another event"},
    ]
    loss, error, rate = figures.training_curves(records).axes
    lines = {line.get_label(): line for line in loss.lines}
    assert np.array_equal(lines["training"].get_ydata(), [3 / step for step in range(1, 31)])
    assert np.array_equal(lines["dev"].get_ydata(), [0.8, 0.5, np.nan], equal_nan=True)
    assert list(lines["skipped step"].get_xdata()) == [21]
    dev, ring = error.lines
    assert list(dev.get_ydata()) == [0.5, 0.4, 0.6]
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([10], [0.4])
    assert error.get_ylabel() == "error rate"
    assert set(rate.lines[0].get_ydata()) == {1e-3}


def test_long_runs_get_a_smoothed_loss_over_finite_values() -> None:
    losses = [None if step <= 4 or step == 9 else float(step) for step in range(1, 203)]
    records = [{"step": step, "loss": loss, "learning_rate": 1.0} for step, loss in enumerate(losses, 1)]
    smooth = figures.training_curves(records).axes[0].lines[1]
    assert smooth.get_label() == "training, mean of 4 steps"
    expected = [np.nan, 6.5, 11.0, 14.5]  # 5…8; 10, 11, 12; 13…16
    assert np.array_equal(smooth.get_ydata()[:4], expected, equal_nan=True)
    assert smooth.get_ydata()[-1] == 201.5  # the last, shorter window counts


def test_length_curve_shows_intervals_counts_and_what_was_seen() -> None:
    above, below = figures.length_curve(
        [2, 4], {"$a$": estimates(0.1, 0.4)}, counts=[7, 3], training_lengths=[2, 3]
    ).axes
    (bars,) = above.containers
    assert [list(segment[:, 1]) for segment in bars[2][0].get_segments()] == [[0.05, 0.2], [0.2, 0.8]]
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["$a$"]
    assert [bar.get_height() for bar in below.containers[0]] == [7, 3]
    span = above.patches[0]
    assert (span.get_x(), span.get_width()) == (1.5, 2.0)


def test_confusions_are_counted_where_they_belong() -> None:
    shown = [Confusion(5, "a", "b"), Confusion(3, "a", ""), Confusion(1, "", "c"), Confusion(9, "d", "b")]
    axes = figures.symbol_confusion(shown, limit=3).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["d", "a"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["b", "∅"]
    assert axes.images[0].get_array().tolist() == [[9, 0], [5, 3]]
    assert sorted(text.get_text() for text in axes.texts) == ["3", "5", "9"]


def test_gates_are_sorted_and_saturated_units_counted() -> None:
    gate = np.array([[0.05, 0.95, 0.5, 0.2], [0.01, 0.99, 0.6, 0.95]])
    axes = figures.gates_over_time({"forget": gate}, "ab").axes[0]
    assert np.array_equal(axes.images[0].get_array(), gate[:, [1, 3, 2, 0]].T)
    assert axes.get_xlabel() == "25 % of the units always open, 25 % always shut"
    assert axes.get_ylabel() == "forget"


def test_gradient_norms_go_through_time_and_depth() -> None:
    states = {"$h$": [3.0, 4.0], "_back": [0.0, 2.0, 1.0]}
    time, depth = figures.gradient_norms(states, {"encoder": [1.0, 5.0]}).axes
    assert time.lines[0].get_ydata().tolist() == [3.0, 4.0]
    assert np.array_equal(time.lines[1].get_ydata(), [np.nan, 2.0, 1.0], equal_nan=True)
    assert [text.get_text() for text in time.get_legend().get_texts()] == ["$h$", "_back"]
    assert (depth.lines[0].get_ydata().tolist(), depth.get_xlabel(), depth.get_yscale()) == ([1.0, 5.0], "block", "log")
    assert time.get_xlim() == (0.5, 3.5)
    (alone,) = figures.gradient_norms({}, {"encoder": [1.0, 5.0]}).axes
    assert alone.get_xlabel() == "block"


def test_spectrum_shows_radius_product_and_bound() -> None:
    plane, growth = FIGURES["jacobian_spectrum"]().axes
    assert plane.get_title() == "ρ = 0.707, σ_max = 1"
    lines = {line.get_label(): line.get_ydata() for line in growth.lines}
    assert np.allclose(lines["ρ to the distance"], [0.5**0.5, 0.5])
    assert np.array_equal(lines["true product"], [0.9, 0.5])
    assert np.array_equal(lines["bound with σ_max"], [1.0, 1.0])
    gated = figures.jacobian_spectrum([0.5], [0.5], product_norms=[0.9]).axes[1]
    assert [line.get_label() for line in gated.lines] == ["true product", "ρ to the distance"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.attention(rows(2, 3), "ab", "xy"), r"attention weights: expected shape .* = \(2, 2\), got"),
        (lambda: figures.attention(np.ones((0, 1)), "a", ""), r"attention weights: nothing to draw.* \(0, 1\)"),
        (lambda: figures.attention([[1.0]], "a", "b", occlusion=[1, 2]), r"occlusion: expected shape .* = \(1\), got"),
        (lambda: figures.attention_heads(rows(2, 3), "abc", "xy"), r"\(any, any, 2, 3\), got \(2, 3\)"),
        (lambda: figures.training_curves([{"step": 1}]), "expected records of steps"),
        (lambda: figures.gates_over_time({"f": rows(3, 2)}, "ab"), r"gate f: expected shape .* = \(2, any\)"),
        (lambda: figures.gates_over_time({}, "ab"), "gates: nothing to draw"),
        (lambda: figures.gradient_norms({"h": [[1.0]]}, {}), r"gradient norms h: expected shape \(time,\) = \(any\)"),
        (lambda: figures.gradient_norms({}, {}), "got neither states nor depth"),
        (lambda: figures.length_curve([1, 2], {"a": estimates(0.1)}, counts=[1, 1]), "estimates: expected shape"),
        (lambda: figures.length_curve([1, 2], {}, counts=[1]), "counts: expected shape"),
        (lambda: figures.symbol_confusion([]), "the predictions have no errors"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(draw: Callable[[], Figure], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        draw()


def test_a_name_without_a_known_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"figure 'a\.pdf': expected a name ending with \.png or \.svg, got '\.pdf'"):
        figures.save(Figure(), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def test_a_picture_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        figures.save(FIGURES["one cell"](), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_pictures_have_the_figures_resolution(tmp_path: Path) -> None:
    figure = FIGURES["attention"]()
    figures.save(figure, tmp_path / "a.png")
    width, height = struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24])
    assert (width, height) == pytest.approx(150 * figure.get_size_inches(), abs=1)


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_without_matplotlib_the_import_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from unrolled.errors import MissingExtraError\n"
        "try:\n    import unrolled.figures\nexcept MissingExtraError as error: print(error)"
    )
    expected = "drawing figures needs matplotlib, which is not installed; run: pip install 'unrolled[train]'"
    assert run(code) == expected


def test_drawing_loads_neither_pyplot_nor_needs_a_display(tmp_path: Path) -> None:
    code = (
        "import os, sys, unrolled; print('matplotlib' in sys.modules); os.environ.pop('DISPLAY', None)\n"
        f"import unrolled.figures as f; f.save(f.attention([[1.0]], 'a', 'b'), {str(tmp_path / 'a.png')!r})\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert run(code).split() == ["False", "False"]
