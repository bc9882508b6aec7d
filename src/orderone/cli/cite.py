"""`orderone cite`: print references for what was used."""

import re
from typing import Annotated

import tyro

from orderone.cli import show
from orderone.cli.help import Help
from orderone.core.citations import cite as references
from orderone.core.errors import one_of

HELP = Help(
    example="orderone cite mup meanfield s1-figure7",
    groups={"Output": ("json",)},
)
NAMES = tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")


def cite(
    what: Annotated[tuple[str, ...], tyro.conf.Positional, NAMES] = (), /, json: bool = False
) -> None:
    """Print references for what you used, as BibTeX. Without names, print all references.

    Args:
        what: Rules (mup, neural-tangent), optimizers (muon), theory modules (meanfield, limits,
            transformer, exponents), depth rules (depth-mup, completep), or tables and figures of
            the papers (s1-figure7).
        json: Print JSON instead of BibTeX.
    """
    citations = references([_known(name) for name in what])
    if json:
        show.print_json([citation.to_dict() for citation in citations])
    else:
        print("\n\n".join(citation.bibtex() for citation in citations))


def _known(name: str) -> str:
    """Return the name of a table or figure of the gallery; `references` checks other names."""
    paper = re.match(r"s[0-3]-", name.lower())
    if paper is None:
        return name
    from orderone.gallery import EXPERIMENTS  # torch and pandas load only here

    entries = [entry for entry in EXPERIMENTS if entry.startswith(paper[0])]
    return one_of(name, entries, "table or figure")
