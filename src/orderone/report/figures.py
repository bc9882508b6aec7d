"""Plotly figures and a few lines of text as one HTML file that opens offline."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.report.html import allowed_scripts
from orderone.report.optional import need

PAGE = Path(__file__).parent / "page"
LAYOUT = {"template": "plotly_white", "height": 440, "margin": {"l": 60, "r": 20, "t": 50, "b": 50}}
Table = Sequence[Sequence[str]]


def write_figures(
    path: str | PathLike[str],
    title: str,
    figures: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
    code: str = "",
) -> Path:
    """`figures` are plotly's {"data": [...], "layout": {...}}; `notes` are paragraphs above them, `tables` (the first row
    is the head) and `code` come below. Returns the path."""
    jinja2, offline, utils = need("jinja2", "report"), need("plotly.offline", "report"), need("plotly.utils", "report")
    scripts = [offline.get_plotlyjs(), (PAGE / "figures.js").read_text(encoding="utf-8")]
    drawn = [{"data": figure["data"], "layout": LAYOUT | dict(figure.get("layout", {}))} for figure in figures]
    data = json.dumps(drawn, cls=utils.PlotlyJSONEncoder).replace("<", "\\u003c")  # no tag can end the script early
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string((PAGE / "figures.html").read_text(encoding="utf-8")).render(
        title=title,
        notes=notes,
        tables=tables,
        code=code,
        count=len(drawn),
        scripts=scripts,
        allowed=allowed_scripts(scripts),
        data=data,
    )
    path = Path(path)
    path.write_text(page, encoding="utf-8", newline="", errors="backslashreplace")
    return path
