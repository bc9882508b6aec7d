"""`orderone reproduce`: run tables and figures of the papers again, and judge them."""

import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from orderone.cli import show
from orderone.cli.exit_codes import NEGATIVE
from orderone.cli.files import check_files, check_folder, wrote
from orderone.cli.help import Help
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.progress import bar

if TYPE_CHECKING:
    from orderone.gallery import Experiment, Reproduced

HELP = Help(
    example="orderone reproduce s0-table2 --html table2.html",
    groups={
        "Experiments": ("listed", "every"),
        "Amount of work": ("scale", "seeds", "again"),
        "Output": ("out", "html", "json"),
    },
)
FOLDER = "reproduced"


def reproduce(
    name: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    listed: Annotated[bool, tyro.conf.arg(name="list")] = False,
    every: Annotated[bool, tyro.conf.arg(name="all")] = False,
    scale: str | None = None,
    out: str | None = None,
    seeds: int | None = None,
    again: bool = False,
    html: str | None = None,
    json: bool = False,
) -> None:
    """Run a table or figure of the papers again and judge its claims. Without a name, list all of
    them.

    Finished parts are saved: after an interruption, the same command continues. Exit code 1 means
    that an experiment broke, not that a claim does not hold.

    Args:
        name: Name of the experiment, such as s0-table2.
        listed: List the experiments.
        every: Run all experiments. An experiment without the chosen scale runs at the next smaller
            one.
        scale: small (about a minute on two cores), gpu (minutes on one large GPU) or paper (the
            sizes of the paper). Default: small.
        out: Folder for the records. Default: reproduced.
        seeds: Number of networks for each setting, in experiments that have such a number.
        again: Run finished parts again.
        html: Write a report with all figures to this file.
        json: Print JSON instead of tables.
    """
    from orderone.gallery import EXPERIMENTS, SCALES  # torch and pandas load only here

    if (name is not None) + every + listed > 1:
        raise InputError(
            "expected a name, --all or --list; got more than one of them", argument="name"
        )
    if name is None and not every:
        unused = {"scale": scale, "out": out, "seeds": seeds, "again": again, "html": html}
        remedy = "add the name of an experiment, or --all"
        refuse_unused("a list of the experiments", remedy, **unused)
        _list(EXPERIMENTS.values(), json)
        return
    scale = one_of(SCALES[0] if scale is None else scale, SCALES, "scale")
    folder = FOLDER if out is None else out
    chosen = list(EXPERIMENTS.values())
    if not every:
        chosen = [EXPERIMENTS[one_of(name, EXPERIMENTS, "experiment")]]
    check_files({"html": html})
    check_folder(folder, "out")
    if seeds is not None:
        seeds = count(seeds, "seeds")
    if every:
        done = _run_all(chosen, scale, Path(folder), again, seeds)
    else:
        done = [_run_single(chosen[0], scale, Path(folder), again, seeds)]
    _show(done, every, json)
    _write_page(done, html)
    if len(done) < len(chosen):
        raise SystemExit(NEGATIVE)


def _list(experiments: "Iterable[Experiment]", json: bool) -> None:
    if json:
        records = []
        for experiment in experiments:
            record: dict[str, object] = {
                "name": experiment.name,
                "title": experiment.title,
                "place": experiment.place,
                "claim": experiment.claim,
                "method": experiment.method,
                "scales": list(experiment.scales),
            }
            records.append(record)
        show.print_json(records)
        return
    rows = []
    for experiment in experiments:
        rows.append((experiment.name, experiment.title, ", ".join(experiment.scales)))
    out = show.console()
    out.print(show.table("orderone reproduce NAME", ("name", "title", "scales"), rows))
    out.print("s0 to s3 are four papers; `orderone cite s0 s1 s2 s3` prints their references")


def _run_all(
    chosen: "Sequence[Experiment]", scale: str, out: Path, again: bool, seeds: int | None
) -> "list[Reproduced]":
    """Run all experiments; print the error of one that breaks, and continue without it."""
    from orderone.gallery.run import has_seeds, nearest

    done = []
    for number, experiment in enumerate(chosen, 1):
        print(f"[{number} of {len(chosen)}] {experiment.name}", file=sys.stderr, flush=True)
        near = nearest(experiment, scale)
        if has_seeds(experiment, near):
            used_seeds = seeds
        else:
            used_seeds = None
        try:
            done.append(_run(experiment, near, out, again, used_seeds))
        except ImportError as error:
            message = f"orderone: {experiment.name} cannot run: {error}; continuing with the others"
            print(message, file=sys.stderr, flush=True)
        except Exception:
            traceback.print_exc()
            message = f"orderone: {experiment.name} broke; continuing with the others"
            print(message, file=sys.stderr, flush=True)
    return done


def _run_single(
    experiment: "Experiment", scale: str, out: Path, again: bool, seeds: int | None
) -> "Reproduced":
    try:
        return _run(experiment, scale, out, again, seeds)
    except ImportError as error:  # an optional package; the message says how to install it
        raise InputError(str(error), "missing-package") from error


def _run(
    experiment: "Experiment", scale: str, out: Path, again: bool, seeds: int | None
) -> "Reproduced":
    from orderone.gallery import reproduce as run

    in_terminal = sys.stderr.isatty()  # elsewhere every part gets a line
    with show.one_thread(), bar(experiment.name, quiet=not in_terminal) as move_bar:

        def report(part: str, number: int, total: int) -> None:
            move_bar(number - 1, total, f"{experiment.name}: {part}")
            if not in_terminal:
                line = f"{experiment.name}: {part} ({number} of {total})"
                print(line, file=sys.stderr, flush=True)

        result = run(experiment, scale, out, seeds=seeds, again=again, tell=report)
        # Compute these now, so that their errors appear here and not while the report is written.
        _ = result.findings
        _ = result.pictures
        return result


def _record(entry: "Reproduced") -> dict[str, object]:
    return {
        "name": entry.experiment.name,
        "scale": entry.scale,
        "verdict": entry.verdict,
        "corrected": entry.corrected,
        "findings": [vars(finding) for finding in entry.findings],
        "provenance": entry.provenance,
    }


def _write_page(done: "Sequence[Reproduced]", html: str | None) -> None:
    if html is not None and done:
        from orderone.report import write_gallery

        wrote(write_gallery(html, done))


def _show(done: "Sequence[Reproduced]", every: bool, json: bool) -> None:
    """Print the results; `every`: JSON is a list, even if only one experiment is complete."""
    if not json:
        _show_tables(done)
    elif every:
        show.print_json([_record(entry) for entry in done])
    else:
        show.print_json(_record(done[0]))


def _show_tables(done: "Sequence[Reproduced]") -> None:
    out = show.console()
    if len(done) == 1:
        _details(done[0], out)
        return
    rows = []
    for entry in done:
        name = entry.experiment.name
        rows.append((name, entry.scale, entry.verdict, entry.corrected, _seconds(entry)))
    head = ("name", "scale", "the paper", "as corrected", "seconds")
    out.print(show.table("Claims of the papers", head, rows))


def _details(entry: "Reproduced", out: Console) -> None:
    from orderone.gallery import Grid
    from orderone.gallery.experiment import SOURCES

    for picture in entry.pictures:
        if isinstance(picture, Grid):
            out.print(show.table(picture.title, picture.head, picture.rows))
    words = {True: "holds", False: "does not hold", None: "unclear"}
    rows = []
    for finding in entry.findings:
        source = SOURCES[finding.of]
        if finding.of == "corrected":
            source = f"as corrected ({finding.erratum})"
        rows.append((finding.claim, source, words[finding.holds], finding.numbers))
    title = f"{entry.experiment.name}, scale {entry.scale}: {entry.experiment.claim}"
    out.print(show.table(title, ("claim", "source", "verdict", "measured"), rows))
    verdicts = f"the paper: {entry.verdict}"
    if entry.corrected:
        verdicts += f"; as corrected: {entry.corrected}"
    out.print(show.coloured(verdicts))


def _seconds(entry: "Reproduced") -> str:
    parts = entry.provenance["parts"].values()
    return f"{sum(part['seconds'] for part in parts):.0f}"
