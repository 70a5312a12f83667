"""One self-contained page about a run: findings first, then figures and the worst items."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator

from matplotlib.figure import Figure

from unrolled.config import Seq2Seq
from unrolled.diagnosis import Examination, Finding, examine_run
from unrolled.errors import UnrolledError
from unrolled.gallery.pictures import PICTURES
from unrolled.gallery.view import View
from unrolled.metrics import item_texts
from unrolled.version import __version__

__all__ = ["report"]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
.finding { border-left: 6px solid #e69f00; background: #fdf6e7; padding: .5rem 1rem; margin: 1rem 0; }
.finding.broken { border-color: #d55e00; background: #fdeee7; }
dl { display: grid; grid-template-columns: 6rem 1fr; gap: .2rem 1rem; margin: .3rem 0; } dt { color: #666; }
dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { color: #444; margin-bottom: .3rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; }
td { border-top: 1px solid #eee; unicode-bidi: plaintext; } .faint { color: #666; } .good { color: #00684b; }
"""


def report(view: View) -> str:
    """Write the page as HTML that asks for nothing outside of itself; pictures are part of it.

    Figures that the run has nothing for (heads of a recurrent model, confusions where all is right) are named at the
    end.
    """
    found = examine_run(view.path, data=view.data)
    drawn, absent = _pictures(view)
    parts = [
        f"<h1>{_text(view.path.name)}</h1>",
        f"<p class=faint>{_text(_summary(view))}</p>",
        "<h2>Findings</h2>",
        *_findings(found),
        "<h2>Figures</h2>",
        *drawn,
        *_worst(view),
        f"<p class=faint>Not drawn: {_text('; '.join(absent))}</p>" if absent else "",
    ]
    title = f"<title>{_text(view.path.name)}</title>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{title}<style>{STYLE}</style>'
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def _summary(view: View) -> str:
    model = view.material.config.model
    parts = f"{model.encoder.type} encoder, " if isinstance(model, Seq2Seq) else ""
    steps = max((event["step"] for event in view.material.events), default=0)
    return f"{parts}{model.decoder.type} decoder; {steps:,} steps; unrolled {__version__}"


def _findings(found: Examination) -> Iterator[str]:
    if not found:
        yield "<p class=good>Nothing found.</p>"
    yield from map(_finding, found)
    yield f"<p class=faint>Checked: {_text(', '.join(map(_plain, found.checked)))}.</p>"
    for title, checks in (("Could not be checked", found.failed), ("Not checked", found.skipped)):
        reasons = "; ".join(f"{_plain(name)} ({reason})" for name, reason in checks.items())
        if reasons:
            yield f"<p class=faint>{title}: {_text(reasons)}.</p>"


def _finding(one: Finding) -> str:
    rows = {"measured": one.measured, "right": one.right, "where": str(one.where), "to do": one.advice}
    if one.cause is not None:
        rows["can follow from"] = _plain(one.cause)
    lines = "".join(f"<dt>{name}</dt><dd>{_text(value)}</dd>" for name, value in rows.items())
    return f'<div class="finding {one.severity}"><b>{one.severity}: {_plain(one.name)}</b><dl>{lines}</dl></div>'


def _pictures(view: View) -> tuple[list[str], list[str]]:
    """The figures as HTML, and what could not be drawn and why."""
    drawn, absent = [], []
    for name, picture in PICTURES.items():
        try:
            figure = picture(view)
        except UnrolledError as error:
            reason = str(error).partition("\n")[0]
            absent.append(reason if reason.startswith(name) else f"{name}: {reason}")
            continue
        caption = (picture.__doc__ or "").partition("\n")[0]
        drawn.append(
            f'<figure id="{name}"><figcaption><b>{name}</b>. {_text(caption)}</figcaption>'
            f'<img alt="{_text(caption)}" src="data:image/png;base64,{_encoded(figure)}"></figure>'
        )
    return drawn, absent


def _encoded(figure: Figure) -> str:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=figure.dpi)
    return base64.b64encode(picture.getvalue()).decode("ascii")


def _worst(view: View) -> Iterator[str]:
    """Errors on the pairs, and the worst of them."""
    try:
        evaluation = view.report.evaluation
    except UnrolledError:
        return
    yield "<h2>Worst items</h2>"
    yield (
        f"<p>{evaluation.whole.num_sources} sources, greedily: wrong {_text(str(evaluation.error_rate))},"
        f" {evaluation.unit} errors {_text(str(evaluation.symbol_error_rate))} (95 % intervals).</p>"
    )
    rows = [
        (str(item.line), item.source, *texts, str(item.edits))
        for item, texts in zip(evaluation.worst, item_texts(evaluation.worst), strict=True)
    ]
    head = "".join(f"<th>{name}</th>" for name in ("line", "source", "output", "nearest answer", "edits"))
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    yield f"<table><tr>{head}</tr>{body}</table>" if rows else "<p class=good>None is wrong.</p>"


def _plain(name: str) -> str:
    return name.removeprefix("check_").replace("_", " ")


def _text(value: str) -> str:
    return html.escape(value)
