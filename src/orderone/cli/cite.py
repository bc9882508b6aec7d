"""`orderone cite`: the references of what was used."""

import re
from typing import Annotated

import tyro

from orderone.cli import show
from orderone.core.citations import cite as references
from orderone.core.errors import one_of

NAMES = tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")


def cite(
    what: Annotated[tuple[str, ...], tyro.conf.Positional, NAMES] = (), /, json: bool = False
) -> None:
    """Print what to cite, as BibTeX. Without names, everything the library builds on.

    Args:
        what: What was used: rules (mup, neural-tangent), optimizers (muon), modules (meanfield,
            limits, transformer, exponents), depth-mup or completep, tables and figures of the
            papers (s1-figure7).
        json: Print JSON instead.
    """
    citations = references([_known(name) for name in what])
    if json:
        show.print_json([citation.to_dict() for citation in citations])
    else:
        print("\n\n".join(citation.bibtex() for citation in citations))


def _known(name: str) -> str:
    """Check that a table or figure is in the gallery; `references` checks other names."""
    paper = re.match(r"s[0-3]-", name.lower())
    if paper is None:
        return name
    from orderone.gallery import EXPERIMENTS  # torch and pandas load only here

    entries = [entry for entry in EXPERIMENTS if entry.startswith(paper[0])]
    return one_of(name, entries, "table or figure")
