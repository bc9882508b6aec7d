"""Plotly figures and a few lines of text as one HTML file that opens offline."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.report.html import allowed_scripts, bundle, read_page
from orderone.report.optional import need

SCRIPTS = ("theme.js", "plots.js", "figures.js")
STYLES = ("pages.css", "dark.css")
LAYOUT = {"height": 440}
Table = Sequence[Sequence[str]]


def write_figures(
    path: str | PathLike[str],
    title: str,
    figures: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
    code: str = "",
) -> Path:
    """`figures` are plotly's {"data": [...], "layout": {...}}; `notes` are paragraphs above them,
    `tables` (the first row is the head) and `code` come below. Returns the path."""
    jinja2 = need("jinja2", "report")
    offline = need("plotly.offline", "report")
    utils = need("plotly.utils", "report")
    scripts = [offline.get_plotlyjs(), bundle(SCRIPTS)]
    drawn = [
        {"data": figure["data"], "layout": LAYOUT | dict(figure.get("layout", {}))}
        for figure in figures
    ]
    data = json.dumps(drawn, cls=utils.PlotlyJSONEncoder).replace(
        "<", "\\u003c"
    )  # no tag can end the script early
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(read_page("figures.html")).render(
        title=title,
        notes=notes,
        tables=tables,
        code=code,
        figures=[{"height": figure["layout"]["height"], **_words(figure)} for figure in drawn],
        styles=[read_page(name) for name in STYLES],
        scripts=scripts,
        allowed=allowed_scripts(scripts),
        data=data,
    )
    path = Path(path)
    path.write_text(page, encoding="utf-8", newline="", errors="backslashreplace")
    return path


def _words(figure: Mapping[str, Any]) -> dict[str, str]:
    """The title of a figure, as plain text: it stands above it, and what follows its first line
    stands below."""
    title = figure["layout"].get("title") or {}
    lines = re.split(
        r"<br ?/?>", title.get("text", "") if isinstance(title, Mapping) else str(title), maxsplit=1
    )
    heading, *rest = (
        html.unescape(re.sub(r"</?(b|i|sub|sup|br ?/?)>", "", line)) for line in lines
    )
    return {"title": heading, "caption": " ".join(rest)}
