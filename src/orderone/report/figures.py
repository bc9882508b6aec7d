"""Plotly figures and a few lines of text as one HTML file that opens offline."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from orderone.core.optional import need
from orderone.report.html import PURPOSE, allowed_scripts, bundle, read_page, write_page
from orderone.report.inputs import Figure, FilePath, Layout, Table

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
    jinja2 = need("jinja2", "report", PURPOSE)
    offline = need("plotly.offline", "report", PURPOSE)
    utils = need("plotly.utils", "report", PURPOSE)
    scripts = [offline.get_plotlyjs(), bundle(SCRIPTS)]
    drawn = []
    headings = []
    for figure in figures:
        layout = LAYOUT | dict(figure.get("layout", {}))
        drawn.append({"data": figure["data"], "layout": layout})
        headings.append({"height": layout["height"], **_heading(layout)})
    data = json.dumps(drawn, cls=utils.PlotlyJSONEncoder)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(read_page("figures.html")).render(
        title=title,
        notes=notes,
        tables=tables,
        code=code,
        figures=headings,
        styles=[read_page(name) for name in STYLES],
        scripts=scripts,
        allowed=allowed_scripts(scripts),
        data=data.replace("<", "\\u003c"),  # so that no text can end the script element
    )
    return write_page(path, page)


def _heading(layout: Layout) -> dict[str, str]:
    """Split the title of a figure: return the first line as title and the rest as caption."""
    title = layout.get("title") or {}
    text = title.get("text", "") if isinstance(title, Mapping) else str(title)
    heading, *caption = (_plain_text(line) for line in re.split(r"<br ?/?>", text, maxsplit=1))
    return {"title": heading, "caption": " ".join(caption)}


def _plain_text(line: str) -> str:
    return html.unescape(re.sub(r"</?(b|i|sub|sup|br ?/?)>", "", line))
