"""A check as one HTML file: its records as JSON, and a page that draws visible panels."""

from pathlib import Path

from orderone.report.inputs import CheckInput, FilePath
from orderone.report.payload import payload
from orderone.report.template import read_page, render, write_page
from orderone.report.verdicts import COLOURS, INK_ON, UNJUDGED

SCRIPTS = ("data.js", "tooltip.js", "panel.js", "panels.js", "table.js", "losses.js", "controls.js")


def html(r: CheckInput, title: str = "Coordinate check") -> str:
    """Return the page of a coordinate check."""
    return render(
        "page.html",
        SCRIPTS,
        r=r,
        title=title,
        colour=COLOURS.get(r.verdict, UNJUDGED),
        ink=INK_ON.get(r.verdict, "#000000"),
        style=read_page("style.css"),
        data=payload(r),
    )


def write_html(r: CheckInput, path: FilePath, title: str = "Coordinate check") -> Path:
    """Write the page of a coordinate check; return its path."""
    return write_page(path, html(r, title))
