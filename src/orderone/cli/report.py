"""`orderone report`: summarize saved results and draw them; train nothing."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from orderone.cli import show
from orderone.cli.check import explained
from orderone.cli.files import RECORDS, check_files, wrote
from orderone.cli.help import Help
from orderone.cli.unused import refuse_unused
from orderone.core.citations.uses import SEEDS
from orderone.core.errors import InputError, one_of

if TYPE_CHECKING:
    from orderone.gallery import Reproduced

HELP = Help(
    example="orderone report runs.db --html report.html",
    groups={"Input": ("folder",), "Output": ("html", "json")},
)
GALLERY = "gallery"
FOLDER = "reproduced"


def report(
    what: Annotated[str, tyro.conf.Positional] = GALLERY,
    /,
    html: str | None = None,
    folder: str | None = None,
    json: bool = False,
) -> None:
    """Summarize saved results, and write them as one HTML page. Nothing is trained.

    Args:
        what: gallery (all tables and figures of the papers), the name of one table or figure, a
            folder that `orderone reproduce` wrote, the store of a sweep (runs.db), or the records
            of a check (.jsonl, .parquet).
        html: Write a page to this file. It opens in any browser, offline too.
        folder: Folder with your own results for the gallery. They replace the results that come
            with the package where they are larger or newer. Default: reproduced, if it exists.
        json: Print JSON instead of tables.
    """
    from orderone.gallery import EXPERIMENTS  # torch and pandas load only here

    check_files({"html": html})
    path = Path(what)
    named = what.lower() in (GALLERY, *EXPERIMENTS)  # write ./gallery for a folder of that name
    if named or not path.exists():
        entries = _from_gallery(what, folder)
    else:
        refuse_unused(what, "--folder is for the gallery", folder=folder)
        if path.is_file():
            _report_file(path, html, json)
            return
        entries = _from_folder(path)
    _show(entries, json)
    if html is not None:
        from orderone.report import write_gallery

        wrote(write_gallery(html, entries))


# --- the gallery ----------------------------------------------------------------------------------


def _from_gallery(what: str, folder: str | None) -> "list[Reproduced]":
    """Return one entry by name, or all, from the user's results and those of the package."""
    from orderone.gallery import EXPERIMENTS
    from orderone.gallery.store import SHIPPED

    if folder is not None and not Path(folder).is_dir():
        raise InputError(
            f"folder: {folder!r} is not a folder; expected one that `orderone reproduce` wrote",
            "no-results",
            argument="folder",
        )
    if any(sign in what for sign in "/\\."):
        raise InputError(
            f"{what}: no such file or folder; expected the store of a sweep, records of a check, a"
            " folder of results, or the name of an experiment",
            "no-results",
            argument="what",
        )
    name = one_of(what, (GALLERY, *EXPERIMENTS), "entry of the gallery, file or folder")
    names = [name]
    if name == GALLERY:
        names = list(EXPERIMENTS)
    entries = _chosen(names, [Path(folder or FOLDER), SHIPPED])
    if not entries:
        message = f"{name}: no results yet; run `orderone reproduce {name}` first"
        raise InputError(message, "no-results", argument="what")
    return entries


def _from_folder(folder: Path) -> "list[Reproduced]":
    from orderone.gallery import EXPERIMENTS

    entries = _chosen(list(EXPERIMENTS), [folder])
    if not entries:
        raise InputError(
            f"{folder}: no results in this folder; expected one that `orderone reproduce --out`"
            " wrote",
            "no-results",
            argument="what",
        )
    return entries


def _chosen(names: Sequence[str], folders: list[Path]) -> "list[Reproduced]":
    from orderone.gallery import EXPERIMENTS
    from orderone.gallery.choose import choose

    entries = []
    all_notes: list[str] = []
    for name in names:
        entry, notes = choose(EXPERIMENTS[name], folders)
        all_notes += notes
        if entry is not None:
            entries.append(entry)
    for note in all_notes:
        print(f"note: {note}", file=sys.stderr)
    return entries


def _show(entries: "list[Reproduced]", json: bool) -> None:
    if json:
        show.print_json([_record(entry) for entry in entries])
        return
    papers: dict[str, list[Reproduced]] = {}
    for entry in entries:
        papers.setdefault(entry.experiment.paper, []).append(entry)
    out = show.console()
    columns = ("name", "title", "scale", "the paper", "corrected", "claims")
    for paper, entries_of_paper in papers.items():
        rows = [_row(entry) for entry in entries_of_paper]
        out.print(show.table(f"{paper}: {SEEDS[paper.lower()].title}", columns, rows))
    out.print("claims: how many claims of the paper hold, of all that were tested")
    if len(entries) == 1:
        columns = ("claim", "source", "verdict", "measured")
        out.print(show.table("Findings", columns, _findings(entries[0])))


def _row(entry: "Reproduced") -> tuple[str | None, ...]:
    experiment = entry.experiment
    holds = [finding.holds for finding in entry.findings if finding.of == "paper"]
    claims = f"{holds.count(True)} of {len(holds)}"
    if None in holds:
        claims += f", {holds.count(None)} unclear"
    return experiment.name, experiment.title, entry.scale, entry.verdict, entry.corrected, claims


def _findings(entry: "Reproduced") -> list[tuple[str, ...]]:
    from orderone.gallery.experiment import SOURCES

    words = {True: "holds", False: "does not hold", None: "unclear"}
    rows = []
    for finding in entry.findings:
        source = f"{SOURCES[finding.of]} {finding.erratum}".strip()
        rows.append((finding.claim, source, words[finding.holds], finding.numbers))
    return rows


def _record(entry: "Reproduced") -> dict[str, object]:
    return {
        "name": entry.experiment.name,
        "title": entry.experiment.title,
        "paper": entry.experiment.paper,
        "scale": entry.scale,
        "verdict": entry.verdict,
        "corrected": entry.corrected,
        "findings": [vars(finding) for finding in entry.findings],
        "provenance": entry.provenance,
    }


# --- sweeps and checks ----------------------------------------------------------------------------


def _report_file(path: Path, html: str | None, json: bool) -> None:
    with explained():
        if path.suffix in RECORDS:
            _check(path, html, json)
        else:
            _sweep(path, html, json)


def _sweep(store: Path, html: str | None, json: bool) -> None:
    from orderone.cli.sweep_results import show_sweep
    from orderone.report import write_transfer
    from orderone.sweeping import Sweep

    sweep = Sweep.load(store)
    if not sweep.outcomes:
        message = f"{store}: no finished trials; run `orderone sweep --store {store}` first"
        raise InputError(message, "no-results", argument="what")
    frame = sweep.frame
    studies = None
    if any(name in frame and frame[name].nunique() > 1 for name in ("width", "depth")):
        studies = sweep.transfers()
    show_sweep(sweep, studies, None, json)
    if html is None:
        return
    if studies is None:
        raise InputError(
            f"html: {store} has one size, and a transfer page needs several widths or depths",
            "needs-several-sizes",
            argument="html",
        )
    wrote(write_transfer(studies.best, html, title=f"Transfer in {store.name}"))


def _check(records: Path, html: str | None, json: bool) -> None:
    from orderone.measure.saved import Saved
    from orderone.report import write_html

    saved = Saved.load(records)
    fitted = saved.exponents[["module", "quantity", "step", "exponent", "low", "high"]]
    if json:
        exponents = [dict(zip(fitted, row, strict=True)) for row in fitted.itertuples(index=False)]
        show.print_json(
            {"notes": saved.notes, "provenance": saved.provenance, "exponents": exponents}
        )
    else:
        out = show.console()
        rows: list[list[str]] = []
        for row in fitted.itertuples(index=False):
            rows.append([_cell(value) for value in row])
        out.print(show.table(f"Exponents of the {saved.axis}", list(fitted), rows))
        out.print(f"note: {saved.notes[0]}")
    if html is not None:
        wrote(write_html(saved, html, title=f"Records of {records.name}"))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:+.2f}"
    return str(value) or "(the model)"  # the root module has no name
