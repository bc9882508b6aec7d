"""Find the folder of a data set; the error says where it was searched and how to get it."""

from os import fspath
from pathlib import Path

from orderone.data.inputs import Root

HOW = (
    "get it with `python -m orderone.data.fetch {name}` (or `make data` for all), or give root="
    " where you have it"
)


def find_folder(root: Root, name: str, *needed: str) -> Path:
    """Return the folder `root/name`, or `root`, that has a file for each of the patterns."""
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
