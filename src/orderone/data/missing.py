"""A data set that is not there is an error that says where it was looked for and how to get it."""

from os import fspath
from pathlib import Path
from typing import Any

HOW = (
    "get it with `python -m orderone.data.fetch {name}` (or `make data` for all), or give root="
    " where you have it"
)


def found_in(root: Any, name: str, *needed: str) -> Path:
    """The folder `root/name`, or `root` itself, that holds a file for every one of the patterns
    `needed`."""
    try:
        places = [Path(fspath(root)) / name, Path(fspath(root))]
    except TypeError:
        raise ValueError(f"root: expected the folder that holds the data, got {root!r}") from None
    for place in places:
        if place.is_dir() and all(any(place.glob(pattern)) for pattern in needed):
            return place
    looked = " and ".join(str(place.absolute()) for place in places)
    raise FileNotFoundError(
        f"{name}: expected {', '.join(needed)} in a folder, looked in {looked}, and not all is"
        " there; " + HOW.format(name=name)
    )
