"""Plotly figures and a few lines of text as one HTML file that opens offline."""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from orderone.report.inputs import Figure, FilePath, Layout, Table
from orderone.report.payload import script_safe
from orderone.report.plain import kinds, plain_figure
from orderone.report.template import read_page, render, write_page

SCRIPTS = ("theme.js", "plots.js", "figures.js")
STYLES = ("pages.css", "dark.css")
LAYOUT: Layout = {"height": 440}


def write_figures(
    path: FilePath,
    title: str,
    figures: Sequence[Figure],
    notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
    code: str = "",
) -> Path:
    """Write plotly figures, {"data": [...], "layout": {...}}, as a page; return its path.

    `notes` are paragraphs above the figures. `tables` (the first row is the head) and `code` are
    below the figures.
    """
    drawn: list[Figure] = []
    headings: list[dict[str, object]] = []
    for figure in map(plain_figure, figures):
        layout = LAYOUT | figure["layout"]
        drawn.append({"data": figure["data"], "layout": layout})
        headings.append({"height": layout["height"], **_heading(layout)})
    page = render(
        "figures.html",
        SCRIPTS,
        kinds(drawn),
        title=title,
        notes=notes,
        tables=tables,
        code=code,
        figures=headings,
        styles=[read_page(name) for name in STYLES],
        data=script_safe(drawn),
    )
    return write_page(path, page)


def _heading(layout: Layout) -> dict[str, str]:
    """Split the title of a figure: return the first line as title and the rest as caption."""
    title = layout.get("title") or {}
    if isinstance(title, Mapping):
        text = title.get("text", "")
    else:
        text = str(title)
    heading, *caption = (_plain_text(line) for line in re.split(r"<br ?/?>", text, maxsplit=1))
    return {"title": heading, "caption": " ".join(caption)}


def _plain_text(line: str) -> str:
    return html.unescape(re.sub(r"</?(b|i|sub|sup|br ?/?)>", "", line))
