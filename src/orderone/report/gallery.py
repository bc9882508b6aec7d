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
from orderone.core.version import VERSION
from orderone.report.gallery_view import CLASSES, FINDINGS, PAPERS, View, views
from orderone.report.inputs import EntriesInput, FilePath
from orderone.report.template import read_page, render, write_page

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
    entry_views = views(entries)
    return render(
        "gallery.html",
        SCRIPTS,
        _kinds(entry_views),
        title=title,
        version=VERSION,
        entries=entry_views,
        papers=_by_paper(entry_views),
        counts=Counter(view.verdict for view in entry_views),
        classes=CLASSES,
        findings=FINDINGS,
        styles=[read_page(name) for name in STYLES],
    )


def write_gallery(path: FilePath, entries: EntriesInput, title: str = TITLE) -> Path:
    """Write the page of entries; return its path."""
    if not entries:
        message = "entries: expected at least one reproduced experiment, got none"
        raise InputError(message, "nothing-to-draw", argument="entries")
    return write_page(path, gallery_html(entries, title))


def _kinds(entry_views: Sequence[View]) -> set[str]:
    """Return the kinds of traces of all figures."""
    types: set[str] = set()
    for view in entry_views:
        types.update(*(block.kinds for block in view.blocks))
    return types


def _by_paper(entry_views: Sequence[View]) -> list[Paper]:
    papers: dict[str, Paper] = {}
    for view in entry_views:
        paper = papers.setdefault(view.paper, Paper(view.paper, PAPERS.get(view.paper, "")))
        paper.entries.append(view)
    return list(papers.values())
