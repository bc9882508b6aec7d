"""Tables and paragraphs of plain text that fit the terminal, or 80 columns elsewhere."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

DEFAULT_WIDTH = 80  # in a pipe, a file or a notebook
NARROWEST = 40
_GAP = 2  # spaces between columns
_NO_BREAK = "\N{NO-BREAK SPACE}"
_HEAD = 20  # columns to which a heading is wrapped if the table is too wide


def text_width() -> int:
    """Return the number of columns of the terminal; COLUMNS in the environment overrides it."""
    return max(NARROWEST, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)


def printable(text: str) -> str:
    """Return the text with characters that standard output cannot encode as escapes.

    Names of tensors and files may have any characters, and a terminal may know ASCII only.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Return the lines of a paragraph; all but the first are indented further."""
    return textwrap.wrap(
        text,
        text_width(),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def text_table(rows: Sequence[Sequence[str]], *, named: bool = False) -> list[str]:
    """Return the lines of a table, the head first.

    If the table is too wide, its headings are wrapped. If that does not suffice and the table is
    `named`, the first cell of every row gets a line of its own, and the others are wrapped between
    words where this is still too wide. Cells are never cut.
    """
    lines = aligned(rows)
    if _fits(lines):
        return lines
    lines = aligned(_with_wrapped_head(rows))
    if _fits(lines) or not named:
        return lines
    return _names_above(rows)


def _fits(lines: Sequence[str]) -> bool:
    return max(len(line) for line in lines) <= text_width()


def _with_wrapped_head(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    heads: list[list[str]] = []
    for head, *cells in zip(*rows, strict=True):
        body = max((len(cell) for cell in cells), default=0)
        heads.append(
            textwrap.wrap(head, max(body, _HEAD), break_long_words=False, break_on_hyphens=False)
        )
    return [*zip_longest(*heads, fillvalue=""), *rows[1:]]


def _names_above(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return two lines for every row: its first cell, and the others, indented."""
    lines: list[str] = []
    others = [row[1:] for row in rows]
    limits = _limits(others, text_width() - _GAP)
    wrapped_rows = [_wrapped_row(row, limits) for row in others]
    numbers = iter(aligned([line for row in wrapped_rows for line in row]))
    for row, row_lines in zip(rows, wrapped_rows, strict=True):
        lines.append(row[0])
        lines += [" " * _GAP + next(numbers) for _ in row_lines]
    return lines


def _limits(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the columns: the widest ones give way, as far as their words allow."""
    limits: list[int] = []
    longest_words: list[int] = []
    for column in zip(*rows, strict=True):
        limits.append(max(len(cell) for cell in column))
        words = _unbroken(" ".join(column)).split(" ")
        longest_words.append(max((len(word) for word in words), default=0))
    gaps = _GAP * (len(limits) - 1)
    while sum(limits) + gaps > width:
        flexible = [n for n, limit in enumerate(limits) if limit > longest_words[n]]
        if not flexible:
            break
        limits[max(flexible, key=lambda n: limits[n])] -= 1
    return limits


def _wrapped_row(row: Sequence[str], limits: Sequence[int]) -> list[Sequence[str]]:
    """Return one line of cells for each line of the longest cell of a row."""
    columns: list[list[str]] = []
    for cell, limit in zip(row, limits, strict=True):
        lines = [cell]
        if len(cell) > limit:
            text = _unbroken(cell)
            lines = textwrap.wrap(text, limit, break_long_words=False, break_on_hyphens=False)
        columns.append([line.replace(_NO_BREAK, " ") for line in lines])
    return list(zip_longest(*columns, fillvalue=""))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their longest cell."""
    widths: list[int] = []
    for column in zip(*rows, strict=True):
        widths.append(max(len(cell) for cell in column))
    lines: list[str] = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append((" " * _GAP).join(cells).rstrip())
    return lines


def _unbroken(cell: str) -> str:
    """Return the cell with intervals that no line break divides: [+0.1, +0.2]."""
    return re.sub(r", (?=[^\[\]]*\])", f",{_NO_BREAK}", cell)
