"""Views: text and figures of an entry of the gallery, ready for the template.

Each experiment has code that judges and draws its records. If that code fails, the page shows the
error in its place and continues.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orderone.report.inputs import (
    Claim,
    EntriesInput,
    EntryInput,
    Figure,
    GridInput,
    PictureInput,
)
from orderone.report.payload import script_safe
from orderone.report.plain import is_empty, kinds, plain_figure

PAPERS = {
    "S0": "Scale-Invariant Parameterizations",
    "S1": "Mean field theory for deep dropout networks",
    "S2": "Effective Theory of Transformers at Initialization",
    "S3": "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks",
}
# CSS class of a verdict, which sets its colour.
CLASSES = {
    "holds": "holds",
    "holds, some undecided": "part",
    "holds in part": "part",
    "does not hold": "fails",
    "unclear": "unclear",
}
# CSS class, mark and word of a single finding.
FINDINGS: dict[bool | None, tuple[str, str, str]] = {
    True: ("holds", "✓", "holds"),
    False: ("fails", "✗", "does not hold"),
    None: ("unclear", "?", "unclear"),
}
HEIGHT = 420  # default height of a figure
TALL = 560  # figures of at least this height have a whole row of the page
EMPTY = "This figure has no data."


@dataclass
class Block:
    """A figure (`data`), a table (`rows`), or the reason why there is neither (`trouble`)."""

    title: str
    caption: str = ""
    alt: str = ""
    data: str = ""
    kinds: frozenset[str] = frozenset()  # of the traces of the figure
    height: int = HEIGHT
    wide: bool = True
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    trouble: str = ""


@dataclass
class MeasuredParts:
    """Parts that were measured with the same settings, and these settings."""

    facts: Mapping[str, str]
    parts: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class View:
    """Content of the page for one entry."""

    id: str
    name: str
    title: str
    place: str
    claim: str
    method: str
    paper: str
    scale: str
    errata: Sequence[str]
    verdict: str
    corrected: str | None
    findings: Sequence[Claim]
    blocks: Sequence[Block]
    command: str
    runs: Sequence[MeasuredParts]
    trouble: str = ""

    @property
    def tally(self) -> tuple[int, int]:
        """Return the number of the paper's claims that hold, and of all of them."""
        claims = self.of("paper")
        return sum(finding.holds is True for finding in claims), len(claims)

    @property
    def unclear(self) -> int:
        """Return the number of the paper's claims that the records cannot decide."""
        return sum(finding.holds is None for finding in self.of("paper"))

    def of(self, kind: str) -> list[Claim]:
        """Return the findings about the claims of the "paper", or about the "corrected" claims."""
        return [finding for finding in self.findings if finding.of == kind]


def views(entries: EntriesInput) -> list[View]:
    """Return a view with a unique id for each entry, sorted by paper."""
    entry_views: list[View] = []
    taken: set[str] = set()
    for entry in sorted(entries, key=lambda entry: entry.experiment.paper):
        view = _view(entry, taken)
        taken.add(view.id)
        entry_views.append(view)
    return entry_views


def _view(entry: EntryInput, taken: set[str]) -> View:
    experiment = entry.experiment
    trouble = ""
    try:
        verdict = entry.verdict
        corrected = entry.corrected
        findings = tuple(entry.findings)
    except Exception as error:  # records of an older version may be incomplete
        verdict = "unclear"
        corrected = None
        findings = ()
        trouble = f"These records could not be judged: {_message(error)}."
    provenance = dict(entry.provenance or {})
    return View(
        id=_unique_id(experiment.name, entry.scale, taken),
        name=experiment.name,
        title=experiment.title,
        place=experiment.place,
        claim=experiment.claim,
        method=experiment.method,
        paper=experiment.paper,
        scale=entry.scale,
        errata=tuple(experiment.errata),
        verdict=verdict,
        corrected=corrected,
        findings=findings,
        blocks=_paired(list(_drawn(entry))),
        command=provenance.get("command", ""),
        runs=_measured_alike(provenance),
        trouble=trouble,
    )


def _unique_id(name: str, scale: str, taken: set[str]) -> str:
    """Return the name; if it is not unique, add the scale, and then a number."""
    short = _slug(name)
    if short not in taken:
        return short
    long = _slug(f"{name}-{scale}")
    unique = long
    number = 2
    while unique in taken:
        unique = f"{long}-{number}"
        number += 1
    return unique


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "entry"


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# --- figures and tables ---------------------------------------------------------------------------


def _drawn(entry: EntryInput) -> Iterator[Block]:
    try:
        pictures = tuple(entry.pictures)
    except Exception as error:
        yield Block("Figures", trouble=f"These records could not be drawn: {_message(error)}.")
        return
    for picture in pictures:
        try:
            yield _figure_or_table(picture)
        except Exception as error:
            title = str(getattr(picture, "title", "Figure"))
            yield Block(title, trouble=f"This could not be drawn: {_message(error)}.")


def _figure_or_table(picture: Any) -> Block:
    """Draw a picture or a table: a picture has the attribute `figure`, whatever its class."""
    if hasattr(picture, "figure"):
        return _figure(picture)
    return _table(picture)


def _figure(picture: PictureInput) -> Block:
    figure = plain_figure(picture.figure)
    block = Block(picture.title, alt=picture.alt, caption=picture.caption or picture.alt)
    if is_empty(figure):
        block.trouble = EMPTY
        return block
    block.data = script_safe(figure)
    block.kinds = frozenset(kinds([figure]))
    block.height = int(figure["layout"].get("height") or HEIGHT)
    block.wide = block.height >= TALL or _has_several_panels(figure)
    return block


def _has_several_panels(figure: Figure) -> bool:
    for name in figure["layout"]:
        if re.fullmatch(r"[xy]axis[2-9]\d*", name):
            return True
    return any(trace.get("xaxis", "x") != "x" for trace in figure["data"])


def _table(grid: GridInput) -> Block:
    rows = [list(map(str, row)) for row in grid.rows]
    return Block(grid.title, grid.caption, head=list(map(str, grid.head)), rows=rows)


def _paired(blocks: list[Block]) -> list[Block]:
    """Widen small figures that have no small neighbour to share a row with."""
    waiting: Block | None = None
    for item in blocks:
        small = bool(item.data) and not item.wide
        if waiting is not None and not small:
            waiting.wide = True
        if small and waiting is None:
            waiting = item
        else:
            waiting = None
    if waiting is not None:
        waiting.wide = True
    return blocks


# --- provenance -----------------------------------------------------------------------------------


def _measured_alike(provenance: Mapping[str, Any]) -> list[MeasuredParts]:
    """Group the parts whose facts are equal."""
    groups: list[MeasuredParts] = []
    for part, record in provenance.get("parts", {}).items():
        facts = _facts(record)
        group = next((group for group in groups if group.facts == facts), None)
        if group is None:
            group = MeasuredParts(facts)
            groups.append(group)
        group.parts.append(part)
        group.seconds += record.get("seconds", 0)
    return groups


def _facts(record: Mapping[str, Any]) -> dict[str, str]:
    facts = {}
    for name in ("measured", "device", "note"):
        if name in record:
            facts[name] = str(record[name])
    versions = record.get("versions")
    if versions:
        facts["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
    settings = record.get("settings") or {}
    for name, value in settings.items():
        facts[name] = _joined(value)
    return facts


def _joined(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_joined, value))
    return str(value)
