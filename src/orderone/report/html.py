"""A check as one HTML file: its records as JSON, and a page that draws visible panels."""

import base64
import gzip
from pathlib import Path

from orderone.report.inputs import CheckInput, FilePath
from orderone.report.payload import STEPS, payload
from orderone.report.template import read_page, render, write_page
from orderone.report.verdicts import COLOURS, INK_ON, UNJUDGED

SCRIPTS = ("data.js", "tooltip.js", "panel.js", "panels.js", "table.js", "losses.js", "controls.js")

LARGE = 400_000  # characters of JSON; a model of 12 blocks has about as many
LARGEST = 1_500_000  # characters of a page
COARSER = (500, 100, 50)  # recorded sizes per decade; the last one has an error of 2.3 %


def html(r: CheckInput, title: str = "Coordinate check") -> str:
    """Return the page of a coordinate check.

    The records of a large one are compressed, and those of a very large one are rounded: a curve on
    a logarithmic axis does not show the difference.
    """
    page = _page(r, title, STEPS)
    for steps in COARSER:
        if len(page) <= LARGEST:
            break
        page = _page(r, title, steps)
    return page


def _page(r: CheckInput, title: str, steps: int) -> str:
    data = payload(r, steps)
    data_format = "json"
    if len(data) > LARGE:
        data = base64.b64encode(gzip.compress(data.encode(), mtime=0)).decode()
        data_format = "gzip"
    return render(
        "page.html",
        SCRIPTS,
        r=r,
        title=title,
        colour=COLOURS.get(r.verdict, UNJUDGED),
        ink=INK_ON.get(r.verdict, "#000000"),
        style=read_page("style.css"),
        data=data,
        data_format=data_format,
    )


def write_html(r: CheckInput, path: FilePath, title: str = "Coordinate check") -> Path:
    """Write the page of a coordinate check; return its path."""
    return write_page(path, html(r, title))
