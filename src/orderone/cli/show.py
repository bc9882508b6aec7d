"""Print tables for the terminal and JSON for programs."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from math import isfinite, isnan
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orderone.cli.help import no_color

COLOURS = {
    "STABLE": "green",
    "PASS": "green",
    "holds": "green",
    "holds, some undecided": "yellow",
    "holds in part": "yellow",
    "does not hold": "bold red",
    "UNSTABLE": "bold red",
    "FAIL": "bold red",
    "FAILS": "bold red",
    "SHRINKS": "cyan",
    "UNCLEAR": "yellow",
    "unclear": "yellow",
    "note": "yellow",
}


INFINITE = "\0infinite"  # a placeholder; no text of orderone starts with a zero byte


SHORT = 16  # characters of a cell that should have one line
BORDERS = 3  # characters that a column of a table needs beside its cells


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise an error: rich would exit with status 1, which means FAIL here."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console that writes to the current standard output.

    It interprets no markup: "pip install 'orderone[report]'" would lose its brackets.
    """
    if no_color():
        color_system = None
    else:
        color_system = "auto"
    return _Console(highlight=False, markup=False, color_system=color_system)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table as wide as the terminal at most; None is an empty cell.

    Cells are wrapped between words. Words are broken only if the longest ones of all columns do not
    fit; they are never cut, since a cut number would be another number.
    """
    texts: list[list[str]] = []
    for row in rows:
        texts.append(["" if value is None else str(value) for value in row])
    result = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    widths = _widths(list(zip(columns, *texts, strict=True)), console().width)
    for column, width in zip(columns, widths, strict=True):
        result.add_column(column, overflow="fold", width=width)
    for cells in texts:
        result.add_row(*(coloured(cell) for cell in cells))
    return result


def _widths(columns: Sequence[Sequence[str]], width: int) -> Sequence[int | None]:
    """Return the widths of columns so that no word is broken; None, left to rich, if it must be.

    The longest words leave some room. Columns of short cells get it first, so that they have one
    line; then those of long cells, in proportion to their lengths.
    """
    words: list[int] = []
    cells: list[int] = []
    for column in columns:
        words.append(max((cell_len(word) for cell in column for word in cell.split()), default=0))
        cells.append(max(cell_len(cell) for cell in column))
    room = width - sum(words) - (BORDERS * len(columns) - 1)
    if room < 0:
        return [None] * len(columns)
    widths = list(words)
    for k, cell in enumerate(cells):
        if cell <= SHORT and cell - words[k] <= room:
            widths[k] = cell
            room -= cell - words[k]
    for _ in range(room):
        lines = [cell / max(width, 1) for cell, width in zip(cells, widths, strict=True)]
        if max(lines) > 1:
            widths[lines.index(max(lines))] += 1
    return widths


def prose(text: str, width: int) -> Text:
    """Return text in colour, with lines longer than `width` wrapped and indented further."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped = wrap(
            line.strip(),
            width,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += wrapped or [""]
    return coloured("\n".join(lines))


def coloured(text: str) -> Text:
    """Return the text with its verdicts in colour, without interpreting markup."""
    result = Text(text)
    for word, colour in COLOURS.items():
        result.highlight_regex(rf"\b{word}\b", colour)
    return result


def print_json(value: object) -> None:
    """Print strict JSON.

    JSON has no infinity: print it as 1e999, a number that parsers read as infinity or as their
    largest number. NaN becomes null.
    """
    only_ascii = "utf" not in (sys.stdout.encoding or "").lower()
    text = json.dumps(
        _finite(value), indent=2, ensure_ascii=only_ascii, allow_nan=False, default=_plain
    )
    text = text.replace(json.dumps(INFINITE + "-"), "-1e999")
    text = text.replace(json.dumps(INFINITE), "1e999")
    print(text)


def _finite(value: object) -> object:
    """Replace infinities and NaN at any depth."""
    if isinstance(value, float) and not isfinite(value):
        if isnan(value):
            return None
        if value > 0:
            return INFINITE
        return INFINITE + "-"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _plain(value: object) -> object:
    """Return a Fraction as text such as "1/2", which is exact and readable by Fraction()."""
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of torch CPU threads, and restore the former number at the end."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Use one torch CPU thread: small networks are slower with more."""
    return threads(1)
