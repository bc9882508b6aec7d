"""What to cite for what was used: `cite(["mup", "muon"])` gives the references, as BibTeX or as
data."""

from orderone.core.citations.citation import Citation
from orderone.core.citations.papers import PAPERS
from orderone.core.citations.uses import cite, known

__all__ = ["PAPERS", "Citation", "cite", "known"]
