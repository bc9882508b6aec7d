"""Pages from templates: each is one HTML file that needs no network.

The content security policy of a page allows no network. It lists the hashes of its two scripts
(plotly.js and the page's own), so that no other script can run, even if the escaping of a name
failed.
"""

import base64
import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

from orderone.core.optional import need
from orderone.report.inputs import FilePath
from orderone.report.plotly_js import plotly_js

PAGE = Path(__file__).parent / "page"
PURPOSE = "to draw reports"  # part of the error message about a missing package


def render(
    template: str, scripts: Sequence[str], traces: Collection[str] = (), **content: object
) -> str:
    """Return the page of a template; its scripts may use the global `Plotly`.

    `traces` are the kinds of traces that the page draws.
    """
    jinja2 = need("jinja2", "report", PURPOSE)
    plotly = plotly_js(traces)
    script = _joined(("unpack.js", *scripts))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(read_page(template)).render(
        plotly=plotly.packed,
        script=script,
        allowed=f"{_hash(plotly.script)} {_hash(script)}",
        **content,
    )


def write_page(path: FilePath, page: str) -> Path:
    """Write a page without translating its newlines, which are part of the hashes.

    A lone surrogate in a name is written as an escape sequence.
    """
    path = Path(path)
    path.write_text(page, encoding="utf-8", newline="", errors="backslashreplace")
    return path


def read_page(name: str) -> str:
    """Return a template, script or style sheet of the package."""
    return (PAGE / name).read_text(encoding="utf-8")


def _joined(names: Sequence[str]) -> str:
    """Join scripts in one function, so that they define no global names."""
    body = "\n".join(map(read_page, names))
    return f"(async () => {{\n'use strict';\n{body}}})().catch((error) => {{\n{FAILED}}});\n"


# If the page's script fails, the page says so, and the console of the browser has the details.
FAILED = """\
const words = `The figures of this page could not be drawn (${error.message}).\
 They need a browser of 2023 or later.`;
document.querySelector("main").prepend(
  Object.assign(document.createElement("p"), { className: "trouble", textContent: words }));
throw error;
"""


def _hash(script: str) -> str:
    """Hash a script as browsers do: after replacing all line ends by newlines."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
