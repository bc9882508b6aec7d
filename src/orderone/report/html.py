"""A check as one HTML file: its records as JSON, plotly.js, and a page that draws the panels in
view.

The file needs no network, and its content security policy allows none: only the two scripts written
here may run, by their hashes, so that a name that slipped through the escaping would still be dead
text.
"""

import base64
import hashlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.report.optional import need
from orderone.report.payload import payload
from orderone.report.verdicts import COLOURS, INK_ON, UNJUDGED

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("data.js", "tooltip.js", "panel.js", "panels.js", "table.js", "losses.js", "controls.js")


def html(r: Any, title: str = "Coordinate check") -> str:
    """The page for the result of a coordinate check."""
    jinja2 = need("jinja2", "report")
    offline = need("plotly.offline", "report")
    scripts = [offline.get_plotlyjs(), bundle(SCRIPTS)]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        read_page("page.html")
    )
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


def write_html(r: Any, path: str | PathLike[str], title: str = "Coordinate check") -> Path:
    """Writes the page, and says where."""
    path = Path(path)
    # newlines as they were hashed, on every system; half a surrogate pair in a name is written as
    # its code
    path.write_text(html(r, title), encoding="utf-8", newline="", errors="backslashreplace")
    return path


def bundle(names: Sequence[str]) -> str:
    """Scripts as one function, so that nothing leaks into the page's global names."""
    return "(() => {\n'use strict';\n" + "\n".join(map(read_page, names)) + "})();\n"


def read_page(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def allowed_scripts(scripts: Sequence[str]) -> str:
    """For the page's policy: these scripts and no others."""
    return " ".join(map(_hash, scripts))


def _hash(script: str) -> str:
    """As a browser sees it: line ends are read as newlines."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
