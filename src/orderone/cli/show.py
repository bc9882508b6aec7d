"""Tables for the terminal, JSON for machines."""

import json
import os
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
    """Made when needed, so that it writes to the standard output of that moment."""
    return _Console(highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    result = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        result.add_column(column)
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
    """Strict JSON, which has no word for infinity: it is written as 1e999, a number that parsers read as infinite or as
    their largest. What is no number (NaN) is null."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    print(text.replace(f'"{json.dumps(INFINITE)[1:-1]}-"', "-1e999").replace(json.dumps(INFINITE), "1e999"))


def _finite(value: object) -> object:
    """The same without infinities and NaN, at any depth."""
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else INFINITE if value > 0 else INFINITE + "-"
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


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
    """Small networks on one core: threads cost them more than they bring, above all on a busy machine."""
    return threads(1)


def writable_folder(path: str, name: str) -> None:
    """A ValueError before the work, if nothing could be written there; a folder that is not there yet is made later."""
    from pathlib import Path

    place = Path(path).absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not path or not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"{name}: cannot write into {path!r}; expected a folder, or the name of a new one")


def writable(path: str, name: str) -> None:
    """A ValueError before the work, if its result could not be written there."""
    from pathlib import Path

    folder = Path(path).absolute().parent
    if not path or Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"{name}: cannot write {path!r}; expected a file in a folder that exists; make the folder first"
        )
