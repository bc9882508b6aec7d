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
    """A paper or a program.

    `authors` are written as "Given Family". The number of a preprint, `arxiv`, gives the year and
    the address if they are left out.
    """

    key: str
    title: str
    authors: tuple[str, ...]
    year: int | None = None
    arxiv: str | None = None
    url: str | None = None
    published: str | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        if self.arxiv:
            year = 2000 + int(self.arxiv[:2])  # 2304.02034 was posted in April 2023
            object.__setattr__(self, "year", self.year or year)
            object.__setattr__(self, "url", self.url or f"https://arxiv.org/abs/{self.arxiv}")

    def bibtex(self) -> str:
        """Return an entry of a .bib file, in ASCII."""
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
        if self.version:
            kind = "software"
        else:
            kind = "misc"
        return "\n".join([f"@{kind}{{{self.key},", *lines, "}"])

    def to_dict(self) -> dict[str, object]:
        """Return the fields that are not None, for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def _author(name: str) -> str:
    """Put the name of a group, which begins with an article, in braces."""
    if name.startswith("The "):
        return f"{{{_latex(name)}}}"
    return _latex(name)


def _latex(text: str) -> str:
    r"""Write accents as commands, é as {\'e}, for programs without Unicode."""

    def command(accented: re.Match[str]) -> str:
        letter, accent = accented.groups()
        return f"{{\\{ACCENTS[accent]}{{{letter}}}}}"

    marks = "".join(ACCENTS)
    ascii_text = re.sub(f"(.)([{marks}])", command, normalize("NFD", text))
    return ascii_text.replace("&", r"\&")
