"""Find the folder of a data set; the error names the folders searched and the download command."""

from os import fspath
from pathlib import Path

from orderone.core.errors import InputError
from orderone.data.inputs import Root

HOW = (
    "download it with `python -m orderone.data.fetch {name}` (`make data` for all data sets), or"
    " pass the folder that has it as root= (--root on the command line)"
)


class MissingDataError(InputError, FileNotFoundError):
    """Files of a data set that are not on this machine; also a FileNotFoundError."""


def find_folder(root: Root, name: str, *needed: str) -> Path:
    """Return `root/name` or `root`, whichever has a file for each pattern in `needed`."""
    try:
        places = [Path(fspath(root)) / name, Path(fspath(root))]
    except TypeError:
        message = f"root: expected the path of the folder with the data sets, got {root!r}"
        raise InputError(message, "wrong-type", argument="root") from None
    for place in places:
        if place.is_dir() and all(any(place.glob(pattern)) for pattern in needed):
            return place
    searched = " or ".join(str(place.absolute()) for place in places)
    message = f"{name}: expected the files {', '.join(needed)} in {searched}; some are missing; "
    raise MissingDataError(message + HOW.format(name=name), "missing-data", argument="root")
