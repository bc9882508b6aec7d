"""Entries of the gallery as one HTML file: verdicts first, then claims, findings, figures, tables
and where it all comes from. Figures are drawn when they are scrolled into view, so that a long page
opens at once.

Like every page here it needs no network, and its content security policy allows none.
"""

from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.core.version import VERSION
from orderone.report.gallery_view import CLASSES, FINDINGS, PAPERS, View, views
from orderone.report.html import allowed_scripts, bundle, read_page
from orderone.report.optional import need

TITLE = "The papers, reproduced"
SCRIPTS = ("theme.js", "plots.js", "gallery.js")
STYLES = ("pages.css", "dark.css")


def gallery_html(entries: Sequence[Any], title: str = TITLE) -> str:
    """`entries` are like what `orderone.gallery.reproduce` returns."""
    jinja2 = need("jinja2", "report")
    offline = need("plotly.offline", "report")
    scripts = [offline.get_plotlyjs(), bundle(SCRIPTS)]
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(read_page("gallery.html"))
    found = views(entries)
    return template.render(
        title=title,
        version=VERSION,
        entries=found,
        papers=_papers(found),
        counts=Counter(view.verdict for view in found),
        classes=CLASSES,
        findings=FINDINGS,
        styles=[read_page(name) for name in STYLES],
        scripts=scripts,
        allowed=allowed_scripts(scripts),
    )


def write_gallery(path: str | PathLike[str], entries: Sequence[Any], title: str = TITLE) -> Path:
    """Writes the page, and says where."""
    if not entries:
        raise ValueError(
            "entries: expected at least one reproduced experiment, got none; run `orderone"
            " reproduce` first"
        )
    path = Path(path)
    # newlines as they were hashed, on every system; half a surrogate pair in a name is written as
    # its code
    path.write_text(
        gallery_html(entries, title), encoding="utf-8", newline="", errors="backslashreplace"
    )
    return path


def _papers(found: Sequence[View]) -> list[dict[str, Any]]:
    """In their order, with their entries."""
    names = dict.fromkeys(view.paper for view in found)
    return [
        {
            "name": name,
            "title": PAPERS.get(name, ""),
            "entries": [view for view in found if view.paper == name],
        }
        for name in names
    ]
