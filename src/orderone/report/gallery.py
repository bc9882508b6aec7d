"""Experiments of the gallery as one HTML file: verdicts, claims, findings, figures, tables, and
provenance.

Figures are drawn when they are scrolled into view, so that a long page opens quickly. Like all
pages of this package it needs no network, and its content security policy allows none.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orderone.core.errors import InputError
from orderone.core.optional import need
from orderone.core.version import VERSION
from orderone.report.gallery_view import CLASSES, FINDINGS, PAPERS, View, views
from orderone.report.html import PURPOSE, allowed_scripts, bundle, read_page, write_page
from orderone.report.inputs import EntriesInput, FilePath

TITLE = "The papers, reproduced"
SCRIPTS = ("theme.js", "plots.js", "gallery.js")
STYLES = ("pages.css", "dark.css")


@dataclass
class Paper:
    """A paper with its entries, for the template."""

    name: str
    title: str
    entries: list[View] = field(default_factory=list)


def gallery_html(entries: EntriesInput, title: str = TITLE) -> str:
    """Return the page of entries, the results of `orderone.gallery.reproduce` or `load`."""
    jinja2 = need("jinja2", "report", PURPOSE)
    offline = need("plotly.offline", "report", PURPOSE)
    scripts = [offline.get_plotlyjs(), bundle(SCRIPTS)]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(read_page("gallery.html"))
    entry_views = views(entries)
    return template.render(
        title=title,
        version=VERSION,
        entries=entry_views,
        papers=_by_paper(entry_views),
        counts=Counter(view.verdict for view in entry_views),
        classes=CLASSES,
        findings=FINDINGS,
        styles=[read_page(name) for name in STYLES],
        scripts=scripts,
        allowed=allowed_scripts(scripts),
    )


def write_gallery(path: FilePath, entries: EntriesInput, title: str = TITLE) -> Path:
    """Write the page of entries; return its path."""
    if not entries:
        message = "entries: expected at least one reproduced experiment, got none"
        raise InputError(message, "nothing-to-draw", argument="entries")
    return write_page(path, gallery_html(entries, title))


def _by_paper(entry_views: Sequence[View]) -> list[Paper]:
    papers: dict[str, Paper] = {}
    for view in entry_views:
        paper = papers.setdefault(view.paper, Paper(view.paper, PAPERS.get(view.paper, "")))
        paper.entries.append(view)
    return list(papers.values())
