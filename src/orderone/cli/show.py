"""Tables for the terminal, JSON for machines."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from math import isfinite, isnan

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLOURS = {
    "STABLE": "green",
    "PASS": "green",
    "holds": "green",
    "holds where clear": "yellow",
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


INFINITE = "\0infinite"  # no text of ours begins like that


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich would end with status 1, which here means FAIL."""
        raise BrokenPipeError


def console() -> Console:
    """Made when needed, so that it writes to the standard output of that moment. What it prints is
    never markup: an error that says "pip install 'orderone[report]'" would lose its brackets."""
    return _Console(highlight=False, markup=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    result = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        result.add_column(
            column, overflow="fold"
        )  # a number that lost its last digits would be another number
    for row in rows:
        result.add_row(*(coloured("" if cell is None else str(cell)) for cell in row))
    return result


def coloured(text: str) -> Text:
    """The text, with its verdicts in colour; user strings are never read as markup."""
    result = Text(text)
    for word, colour in COLOURS.items():
        result.highlight_regex(rf"\b{word}\b", colour)
    return result


def print_json(value: object) -> None:
    """Strict JSON, which has no word for infinity: it is written as 1e999, a number that parsers
    read as infinite or as their largest. What is no number (NaN) is null."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    print(
        text.replace(f'"{json.dumps(INFINITE)[1:-1]}-"', "-1e999").replace(
            json.dumps(INFINITE), "1e999"
        )
    )


def _finite(value: object) -> object:
    """The same without infinities and NaN, at any depth."""
    if isinstance(value, float) and not isfinite(value):
        if isnan(value):
            return None
        if value > 0:
            return INFINITE
        return INFINITE + "-"
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _plain(value: object) -> object:
    """Exponents travel as "1/2": exact, and readable by Fraction()."""
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Of torch; afterwards as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Small networks on one core: threads cost them more than they bring, above all on a busy
    machine."""
    return threads(1)
