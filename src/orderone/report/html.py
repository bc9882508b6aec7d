"""A check as one HTML file: its records as JSON, plotly.js, and a page that draws the panels in
view.

The file needs no network, and its content security policy allows none: only the two scripts written
here may run, by their hashes, so that a name that slipped through the escaping would still be dead
text.
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from orderone.core.optional import need
from orderone.report.inputs import CheckInput, FilePath
from orderone.report.payload import payload
from orderone.report.verdicts import COLOURS, INK_ON, UNJUDGED

PAGE = Path(__file__).parent / "page"
PURPOSE = "to draw this"  # ends the error of a missing package
SCRIPTS = ("data.js", "tooltip.js", "panel.js", "panels.js", "table.js", "losses.js", "controls.js")


def html(r: CheckInput, title: str = "Coordinate check") -> str:
    """Return the page of a coordinate check."""
    jinja2 = need("jinja2", "report", PURPOSE)
    offline = need("plotly.offline", "report", PURPOSE)
    scripts = [offline.get_plotlyjs(), bundle(SCRIPTS)]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(read_page("page.html"))
    return template.render(
        r=r,
        title=title,
        colour=COLOURS.get(r.verdict, UNJUDGED),
        ink=INK_ON.get(r.verdict, "#000000"),
        style=read_page("style.css"),
        scripts=scripts,
        allowed=allowed_scripts(scripts),
        data=payload(r),
    )


def write_html(r: CheckInput, path: FilePath, title: str = "Coordinate check") -> Path:
    """Write the page of a coordinate check. Returns the path."""
    return write_page(path, html(r, title))


def write_page(path: FilePath, page: str) -> Path:
    """Write a page with its newlines as they were hashed, on every system.

    Half a surrogate pair in a name is written as its code.
    """
    path = Path(path)
    path.write_text(page, encoding="utf-8", newline="", errors="backslashreplace")
    return path


def bundle(names: Sequence[str]) -> str:
    """Join scripts in one function, so that nothing leaks into the page's global names."""
    return "(() => {\n'use strict';\n" + "\n".join(map(read_page, names)) + "})();\n"


def read_page(name: str) -> str:
    """Return a template, script or style sheet of the package."""
    return (PAGE / name).read_text(encoding="utf-8")


def allowed_scripts(scripts: Sequence[str]) -> str:
    """Return the sources for the page's policy: these scripts and no others."""
    return " ".join(map(_hash, scripts))


def _hash(script: str) -> str:
    """Hash a script as a browser does: line ends are read as newlines."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
