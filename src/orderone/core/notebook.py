"""Results as HTML for notebooks, without colours: it follows the light or dark theme."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align: left; white-space: nowrap"
MOST_ROWS = 60


def notebook_html(
    headline: str, tables: Iterable[Sequence[Sequence[str]]] = (), notes: Iterable[str] = ()
) -> str:
    """Return a headline, tables (the first row is the head) and notes as HTML, escaped.

    A long table is cut after `MOST_ROWS` rows, and says so.
    """
    parts = [f"<p><b>{escape(headline)}</b></p>"]
    for head, *rows in tables:
        parts.append(_table(head, rows[:MOST_ROWS]))
        if len(rows) > MOST_ROWS:
            parts.append(f"<p>... and {len(rows) - MOST_ROWS} more rows</p>")
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    if items:
        parts.append(f"<ul>{items}</ul>")
    return f'<div style="overflow-x: auto">{"".join(parts)}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head, "th"), *(_row(row, "td") for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    inner = "".join(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inner}</tr>"
