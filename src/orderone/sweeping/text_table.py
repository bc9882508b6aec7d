"""Tables and paragraphs of plain text that fit 80 columns."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

COLUMNS = 80
_GAP = 2  # spaces between columns
_HEAD = 20  # columns to which a heading is wrapped if the table is too wide


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Return the lines of a paragraph; all but the first are indented further."""
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, the head first.

    If the table is too wide, its headings are wrapped. Cells are never cut.
    """
    lines = _aligned(rows)
    if max(len(line) for line in lines) <= COLUMNS:
        return lines
    heads: list[list[str]] = []
    for head, *cells in zip(*rows, strict=True):
        body = max((len(cell) for cell in cells), default=0)
        heads.append(
            textwrap.wrap(head, max(body, _HEAD), break_long_words=False, break_on_hyphens=False)
        )
    head_rows = list(zip_longest(*heads, fillvalue=""))
    return _aligned([*head_rows, *rows[1:]])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths: list[int] = []
    for column in zip(*rows, strict=True):
        widths.append(max(len(cell) for cell in column))
    lines: list[str] = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append((" " * _GAP).join(cells).rstrip())
    return lines
