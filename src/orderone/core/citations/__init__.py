"""References to cite: `cite(["mup", "muon"])` returns them, as BibTeX or as data."""

from orderone.core.citations.citation import Citation
from orderone.core.citations.papers import PAPERS
from orderone.core.citations.uses import cite, known

__all__ = ["PAPERS", "Citation", "cite", "known"]
