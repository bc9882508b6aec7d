"""Versions of torch that the library was tested with, and the words for all others."""

import re
import warnings

OLDEST = (2, 11)
NEWEST = (2, 15)


def tested_range() -> str:
    """Return the tested versions in words: "2.11 to 2.15"."""
    oldest = ".".join(map(str, OLDEST))
    newest = ".".join(map(str, NEWEST))
    return f"{oldest} to {newest}"


def check_version(version: str) -> None:
    """Raise an ImportError if torch is too old; warn if it is newer than all tested versions."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:  # built from source, without a version: the names decide
        return
    installed = (int(numbers[1]), int(numbers[2]))
    if installed < OLDEST:
        raise ImportError(
            f"orderone needs torch {tested_range()}, but torch {version} is installed. "
            f"Install another one: {install_command()}"
        )
    if installed > NEWEST:
        warnings.warn(
            f"torch {version} is newer than the versions that orderone was tested with "
            f"({tested_range()}). If something fails, install a tested one: {install_command()}",
            stacklevel=2,
        )


def missing_name(name: str, version: str) -> ImportError:
    """Return the error for a private name that this version of torch does not have."""
    return ImportError(
        f"orderone needs {name}, which torch {version} does not have. "
        f"Tested versions are {tested_range()}. Install one of them: {install_command()}"
    )


def install_command() -> str:
    """Return the command that installs a tested version of torch."""
    oldest = ".".join(map(str, OLDEST))
    return f"pip install 'torch>={oldest},<{NEWEST[0]}.{NEWEST[1] + 1}'"
