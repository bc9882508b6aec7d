"""`orderone report`: pages and summaries of what was measured before; nothing is run."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from orderone.cli import show
from orderone.cli.check import explained
from orderone.cli.files import RECORDS, check_files, wrote
from orderone.cli.unused import no_use
from orderone.core.citations.uses import SEEDS
from orderone.core.errors import one_of

if TYPE_CHECKING:
    from orderone.gallery import Reproduced

GALLERY = "gallery"
FOLDER = "reproduced"


def report(
    what: Annotated[str, tyro.conf.Positional] = GALLERY,
    /,
    html: str | None = None,
    folder: str | None = None,
    json: bool = False,
) -> None:
    """Summarize what was measured, and draw it as one HTML file that opens in any browser without a
    network.

    Args:
        what: gallery (all tables and figures of the papers), one of them by its name, a folder that
            `orderone reproduce` filled, the store of a sweep (runs.db), or the saved records of a
            check (.jsonl, .parquet).
        html: The file to write.
        folder: Results of your own for the gallery; they are shown where they are larger or newer
            than those that come with the package. Default: reproduced, if it is there.
        json: Print JSON instead of tables.
    """
    from orderone.gallery import EXPERIMENTS  # torch and pandas load only here

    check_files({"html": html})
    path = Path(what)
    named = what.lower() in (GALLERY, *EXPERIMENTS)  # ./gallery is a folder
    if path.exists() and not named:
        no_use(what, "it belongs to the gallery", folder=folder)
    if path.is_file() and not named:
        with explained():
            (_check if path.suffix in RECORDS else _sweep)(path, html, json)
        return
    if path.is_dir() and not named:
        entries = _of_folder(path)
    else:
        entries = _of_gallery(what, folder)
    _tell(entries, json)
    if html is not None:
        from orderone.report import write_gallery

        wrote(write_gallery(html, entries))


# --- the gallery ----------------------------------------------------------------------------------


def _of_gallery(what: str, folder: str | None) -> "list[Reproduced]":
    """By name or all; the shipped results, and the reader's own."""
    from orderone.gallery import EXPERIMENTS
    from orderone.gallery.store import SHIPPED

    if folder is not None and not Path(folder).is_dir():
        raise ValueError(
            f"folder: expected one that `orderone reproduce` filled, got {folder!r}, which is no"
            " folder"
        )
    if any(sign in what for sign in "/\\."):
        raise ValueError(
            f"{what}: no such file or folder; expected a store, records, a folder, or a name of the"
            " gallery"
        )
    name = one_of(what, (GALLERY, *EXPERIMENTS), "entry of the gallery, file or folder")
    entries = _chosen(
        list(EXPERIMENTS) if name == GALLERY else [name], [Path(folder or FOLDER), SHIPPED]
    )
    if not entries:
        raise ValueError(f"{name}: nothing was measured yet; run `orderone reproduce {name}` first")
    return entries


def _of_folder(folder: Path) -> "list[Reproduced]":
    from orderone.gallery import EXPERIMENTS

    entries = _chosen(list(EXPERIMENTS), [folder])
    if not entries:
        raise ValueError(
            f"{folder}: no results in this folder; expected one that `orderone reproduce --out`"
            " filled"
        )
    return entries


def _chosen(names: Sequence[str], folders: list[Path]) -> "list[Reproduced]":
    from orderone.gallery import EXPERIMENTS
    from orderone.gallery.choose import choose

    found = [choose(EXPERIMENTS[name], folders) for name in names]
    for note in (note for _, notes in found for note in notes):
        print(f"note: {note}", file=sys.stderr)
    return [each for each, _ in found if each is not None]


def _tell(entries: "list[Reproduced]", json: bool) -> None:
    if json:
        show.print_json([_record(each) for each in entries])
        return
    out = show.console()
    for paper in dict.fromkeys(each.experiment.paper for each in entries):
        rows = [_row(each) for each in entries if each.experiment.paper == paper]
        title = f"{paper}: {SEEDS[paper.lower()].title}"
        out.print(
            show.table(
                title, ("name", "what it shows", "scale", "the paper", "corrected", "claims"), rows
            )
        )
    if len(entries) == 1:
        out.print(
            show.table("Findings", ("claim", "whose", "verdict", "measured"), _findings(entries[0]))
        )


def _row(each: "Reproduced") -> tuple[str | None, ...]:
    told = [finding.holds for finding in each.findings if finding.of == "paper"]
    held = f"{told.count(True)} of {len(told)}" + (
        f", {told.count(None)} unclear" if None in told else ""
    )
    return (
        each.experiment.name,
        each.experiment.title,
        each.scale,
        each.verdict,
        each.corrected,
        held,
    )


def _findings(each: "Reproduced") -> list[tuple[str, ...]]:
    words = {True: "holds", False: "does not hold", None: "unclear"}
    whose = {"paper": "the paper", "corrected": "corrected"}
    return [
        (f.claim, f"{whose[f.of]} {f.erratum}".strip(), words[f.holds], f.numbers)
        for f in each.findings
    ]


def _record(each: "Reproduced") -> dict[str, Any]:
    own = {
        "name": each.experiment.name,
        "title": each.experiment.title,
        "paper": each.experiment.paper,
    }
    own |= {"scale": each.scale, "verdict": each.verdict, "corrected": each.corrected}
    return own | {
        "findings": [vars(finding) for finding in each.findings],
        "provenance": each.provenance,
    }


# --- sweeps and checks ----------------------------------------------------------------------------


def _sweep(store: Path, html: str | None, json: bool) -> None:
    from orderone.cli.sweep import show_sweep
    from orderone.report import write_transfer
    from orderone.sweeping import Sweep

    found = Sweep.load(store)
    if not found.outcomes:
        raise ValueError(f"{store}: nothing was trained yet; `orderone sweep --store {store}` does")
    several = any(
        found.frame[name].nunique() > 1 for name in ("width", "depth") if name in found.frame
    )
    study = found.transfer() if several else None
    show_sweep(found, study, None, json)
    if html is not None and study is None:
        raise ValueError(
            f"html: there is nothing to draw; {store} has one size, and transfer needs several"
        )
    if html is not None:
        wrote(write_transfer(study, html, title=f"Transfer in {store.name}"))


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
        rows = [[_cell(value) for value in row] for row in fitted.itertuples(index=False)]
        out.print(show.table(f"Exponents of {saved.axis}", list(fitted), rows))
        out.print(f"note: {saved.notes[0]}", soft_wrap=True)
    if html is not None:
        wrote(write_html(saved, html, title=f"Records of {records.name}"))


def _cell(value: object) -> str:
    # the root has no name
    if isinstance(value, float):
        return f"{value:+.2f}"
    return str(value) or "(the model)"
