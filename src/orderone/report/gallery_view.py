"""What the page shows of one entry of the gallery: words and figures, ready to be written.

Judging and drawing are the entry's own code. Should they fail, the page says so in their place, and
goes on.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orderone.report.payload import script_safe
from orderone.report.plain import is_empty, plain_figure

PAPERS = {
    "S0": "Scale-Invariant Parameterizations",
    "S1": "Mean field theory for deep dropout networks",
    "S2": "Effective Theory of Transformers at Initialization",
    "S3": "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks",
}
# The class of a verdict, or of a single finding, is what its colour hangs on.
CLASSES = {
    "holds": "holds",
    "holds where clear": "part",
    "holds in part": "part",
    "does not hold": "fails",
    "unclear": "unclear",
}
FINDINGS = {
    True: ("holds", "✓", "holds"),
    False: ("fails", "✗", "does not hold"),
    None: ("unclear", "?", "unclear"),
}
HEIGHT = 420  # of a figure that names none
TALL = 560  # from here on a figure gets a row of its own
EMPTY = "There is nothing to draw: this figure has no data."


@dataclass
class Shown:
    """A figure (with `data`), a table (with `rows`), or what is said in place of one
    (`trouble`)."""

    title: str
    caption: str = ""
    alt: str = ""
    data: str = ""
    height: int = HEIGHT
    wide: bool = True
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    trouble: str = ""


@dataclass
class View:
    id: str
    name: str
    title: str
    claim: str
    method: str
    paper: str
    scale: str
    errata: Sequence[str]
    verdict: str
    corrected: str | None
    findings: Sequence[Any]
    shown: Sequence[Shown]
    command: str
    runs: Sequence[Mapping[str, Any]]  # parts that were measured alike
    trouble: str = ""

    @property
    def tally(self) -> tuple[int, int]:
        """How many of the paper's claims hold, of all."""
        told = [finding.holds for finding in self.findings if finding.of == "paper"]
        return told.count(True), len(told)

    @property
    def unclear(self) -> int:
        """How many of them the records cannot tell."""
        return sum(finding.holds is None for finding in self.of("paper"))

    def of(self, which: str) -> list[Any]:
        return [finding for finding in self.findings if finding.of == which]


def views(entries: Sequence[Any]) -> list[View]:
    """By paper, otherwise in the order given; each with an id that no other has."""
    found: list[View] = []
    for entry in sorted(entries, key=lambda entry: entry.experiment.paper):
        found.append(_view(entry, {view.id for view in found}))
    return found


def _view(entry: Any, taken: set[str]) -> View:
    e = entry.experiment
    verdict, corrected, findings, trouble = _judged(entry)
    provenance = dict(entry.provenance or {})
    return View(
        id=_free(_slug(e.name), _slug(f"{e.name}-{entry.scale}"), taken),
        name=e.name,
        title=e.title,
        claim=e.claim,
        method=e.method,
        paper=e.paper,
        scale=entry.scale,
        errata=tuple(e.errata),
        verdict=verdict,
        corrected=corrected,
        findings=findings,
        shown=_paired(list(_drawn(entry))),
        command=provenance.get("command", ""),
        runs=_runs(provenance),
        trouble=trouble,
    )


def _judged(entry: Any) -> tuple[str, str | None, Sequence[Any], str]:
    try:
        return entry.verdict, entry.corrected, tuple(entry.findings), ""
    except Exception as error:  # records of an older version may lack anything
        return "unclear", None, (), f"These records could not be judged: {_said(error)}."


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "entry"


def _free(short: str, long: str, taken: set[str]) -> str:
    names = (
        name
        for k in range(len(taken) + 2)
        for name in ((short, long) if k == 0 else (f"{long}-{k + 1}",))
    )
    return next(name for name in names if name not in taken)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# --- figures and tables ---------------------------------------------------------------------------


def _drawn(entry: Any) -> Iterator[Shown]:
    try:
        pictures = tuple(entry.pictures)
    except Exception as error:
        yield Shown("Figures", trouble=f"These records could not be drawn: {_said(error)}.")
        return
    for picture in pictures:
        try:
            yield _figure(picture) if hasattr(picture, "figure") else _table(picture)
        except Exception as error:
            yield Shown(
                str(getattr(picture, "title", "Figure")),
                trouble=f"This could not be drawn: {_said(error)}.",
            )


def _figure(picture: Any) -> Shown:
    figure = plain_figure(picture.figure)
    words = {"title": picture.title, "alt": picture.alt, "caption": picture.caption or picture.alt}
    if is_empty(figure):
        return Shown(**words, trouble=EMPTY)
    height = int(figure["layout"].get("height") or HEIGHT)
    return Shown(
        **words,
        data=script_safe(figure),
        height=height,
        wide=height >= TALL or _several_panels(figure),
    )


def _several_panels(figure: Mapping[str, Any]) -> bool:
    axes = {name for name in figure["layout"] if re.fullmatch(r"[xy]axis[2-9]\d*", name)}
    return bool(axes) or any(trace.get("xaxis", "x") != "x" for trace in figure["data"])


def _table(grid: Any) -> Shown:
    rows = [[str(cell) for cell in row] for row in grid.rows]
    return Shown(grid.title, grid.caption, head=[str(cell) for cell in grid.head], rows=rows)


def _paired(shown: list[Shown]) -> list[Shown]:
    """A small figure that has no small neighbour to share a row with gets the row."""
    waiting: Shown | None = None
    for each in shown:
        small = bool(each.data) and not each.wide
        if waiting is not None and not small:
            waiting.wide = True
        waiting = each if small and waiting is None else None
    if waiting is not None:
        waiting.wide = True
    return shown


# --- provenance -----------------------------------------------------------------------------------


def _runs(provenance: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parts that were measured alike, told once: {"parts": [...], "seconds": .., "facts": {name:
    value}}."""
    runs: list[dict[str, Any]] = []
    for part, known in provenance.get("parts", {}).items():
        facts = _facts(known)
        run = next((run for run in runs if run["facts"] == facts), None)
        if run is None:
            runs.append(run := {"parts": [], "seconds": 0.0, "facts": facts})
        run["parts"].append(part)
        run["seconds"] += known.get("seconds", 0)
    return runs


def _facts(known: Mapping[str, Any]) -> dict[str, str]:
    settings = known.get("settings") or {}
    versions = known.get("versions") or {}
    facts = {name: str(known[name]) for name in ("measured", "device", "note") if name in known}
    facts |= (
        {"versions": ", ".join(f"{name} {value}" for name, value in versions.items())}
        if versions
        else {}
    )
    return facts | {name: _short(value) for name, value in settings.items()}


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_short, value))
    return str(value)
