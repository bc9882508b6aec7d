"""One reference, as BibTeX and as plain data."""

import re
from dataclasses import asdict, dataclass
from unicodedata import normalize

ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0308": '"',
    "\u030c": "v",
    "\u0327": "c",
}


@dataclass(frozen=True)
class Citation:
    """A paper or a program: `authors` as "Given Family"; `arxiv`, the number of a preprint, tells
    year and address."""

    key: str
    title: str
    authors: tuple[str, ...]
    year: int | None = None
    arxiv: str | None = None
    url: str | None = None
    published: str | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        if self.arxiv:  # 2304.02034 is of April 2023
            object.__setattr__(self, "year", self.year or 2000 + int(self.arxiv[:2]))
            object.__setattr__(self, "url", self.url or f"https://arxiv.org/abs/{self.arxiv}")

    def bibtex(self) -> str:
        """An entry of a .bib file, in ASCII."""
        fields = {
            "title": f"{{{_latex(self.title)}}}",  # braces keep capitals
            "author": " and ".join(map(_author, self.authors)),
            "year": self.year,
            "howpublished": self.published,
            "version": self.version,
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else None,
            "url": self.url,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value is not None]
        return "\n".join([f"@{'software' if self.version else 'misc'}{{{self.key},", *lines, "}"])

    def to_dict(self) -> dict[str, object]:
        """What is known, for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def _author(name: str) -> str:
    """A name that begins with an article is one of a group."""
    if name.startswith("The "):
        return f"{{{_latex(name)}}}"
    return _latex(name)


def _latex(text: str) -> str:
    r"""Accents as commands, é as {\'e}, for programs that know no Unicode."""
    marks = "".join(ACCENTS)
    found = re.sub(
        f"(.)([{marks}])", lambda m: f"{{\\{ACCENTS[m[2]]}{{{m[1]}}}}}", normalize("NFD", text)
    )
    return found.replace("&", r"\&")
