"""A check as one HTML file: its records as JSON, plotly.js, and a page that draws visible panels.

The file needs no network, and its content security policy allows none. The policy lists the hashes
of the page's two scripts, so that no other script can run, even if the escaping of a name failed.
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
PURPOSE = "to draw reports"  # part of the error message about a missing package
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
    """Write the page of a coordinate check; return its path."""
    return write_page(path, html(r, title))


def write_page(path: FilePath, page: str) -> Path:
    """Write a page without translating its newlines, which are part of the hashes.

    A lone surrogate in a name is written as an escape sequence.
    """
    path = Path(path)
    path.write_text(page, encoding="utf-8", newline="", errors="backslashreplace")
    return path


def bundle(names: Sequence[str]) -> str:
    """Join scripts in one function, so that they define no global names."""
    return "(() => {\n'use strict';\n" + "\n".join(map(read_page, names)) + "})();\n"


def read_page(name: str) -> str:
    """Return a template, script or style sheet of the package."""
    return (PAGE / name).read_text(encoding="utf-8")


def allowed_scripts(scripts: Sequence[str]) -> str:
    """Return the script sources of the page's content security policy: only these scripts."""
    return " ".join(map(_hash, scripts))


def _hash(script: str) -> str:
    """Hash a script as browsers do: after replacing all line ends by newlines."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
