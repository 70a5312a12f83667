"""The paper that every figure is drawn on: a blank figure, its caption, and saving."""

from __future__ import annotations

import io
import textwrap
import uuid
from pathlib import Path

from matplotlib.figure import Figure

from unrolled.errors import ConfigError

__all__ = ["blank", "caption", "fixed", "save"]

DPI = 150
CAPTION_SIZE = 8.0  # points
NARROWEST = 4.5  # inches, so that captions stay readable
MARGIN = 0.1  # inches
FORMATS = {".png": "png", ".svg": "svg"}


def blank(width: float, height: float) -> Figure:
    """Empty figure of a size in inches whose parts share it; for curves, which may have any shape."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def fixed(width: float, height: float) -> Figure:
    """Empty figure for parts of exact sizes in inches; `frame` makes room around them."""
    return Figure(figsize=(width, height), dpi=DPI)


def caption(figure: Figure, text: str) -> None:
    """Put what to see below a `blank` figure, wrapped to its width."""
    figure.supxlabel(wrap(text, figure.get_figwidth() - 2 * MARGIN, CAPTION_SIZE), fontsize=CAPTION_SIZE, color="0.3")


def frame(figure: Figure, text: str) -> None:
    """Grow a `fixed` figure around all that was drawn in or beside it, and put a caption below."""
    drawn = figure.get_tightbbox()  # inches, from the old corner
    inner = max(drawn.width, NARROWEST)
    lines = wrap(text, inner, CAPTION_SIZE)
    below = 2 * MARGIN + 1.3 * CAPTION_SIZE / 72 * (1 + lines.count("\n"))
    left, bottom = MARGIN + (inner - drawn.width) / 2 - drawn.x0, MARGIN + below - drawn.y0
    old_width, old_height = figure.get_size_inches()
    width, height = inner + 2 * MARGIN, drawn.height + below + 2 * MARGIN
    for axes in figure.axes:
        x, y, w, h = axes.get_position().bounds
        corner = ((x * old_width + left) / width, (y * old_height + bottom) / height)
        axes.set_position((*corner, w * old_width / width, h * old_height / height))
    figure.set_size_inches(width, height)
    figure.text(0.5, MARGIN / height, lines, fontsize=CAPTION_SIZE, color="0.3", ha="center", va="bottom")


def wrap(text: str, width: float, size: float) -> str:
    """Break a text into lines of a width in inches at a font size in points."""
    average_letter = 0.53 * size / 72  # inches
    return textwrap.fill(text, max(int(width / average_letter), 10))


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file, which is replaced whole or not at all.

    Parameters
    ----------
    figure : Figure
        The figure.
    path : path
        Ends with `.png` or `.svg`, which chooses the format. Missing folders are made.

    Raises
    ------
    ConfigError
        If the name ends otherwise.
    """
    path = Path(path)
    file_format = FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise ConfigError(f"figure {path.name!r}: expected a name ending with .png or .svg, got {path.suffix!r}")
    picture = io.BytesIO()
    figure.savefig(picture, format=file_format, dpi=figure.dpi)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, picture.getvalue())


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
