"""`orderone cite`: the references of what was used."""

from typing import Annotated

import tyro

from orderone.cli import show
from orderone.core.citations import cite as references

NAMES = tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")


def cite(what: Annotated[tuple[str, ...], tyro.conf.Positional, NAMES] = (), /, json: bool = False) -> None:
    """Print what to cite, as BibTeX. Without names, everything the library builds on.

    Args:
        what: What was used: rules (mup, neural-tangent), optimizers (muon), modules (meanfield, limits, transformer,
            exponents), depth-mup or completep, tables and figures of the papers (s1-figure7).
        json: Print JSON instead.
    """
    found = references(what)
    if json:
        show.print_json([citation.to_dict() for citation in found])
    else:
        print("\n\n".join(citation.bibtex() for citation in found))
