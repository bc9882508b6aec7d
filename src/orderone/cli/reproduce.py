"""`orderone reproduce`: tables and figures of the papers, run again and judged."""

import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from orderone.cli import show
from orderone.cli.files import check_files, check_folder, wrote
from orderone.cli.unused import no_use
from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.progress import bar

if TYPE_CHECKING:
    from orderone.gallery import Experiment, Reproduced

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
    """Run a table or figure of the papers: what it claims, what networks do, whether it holds.
    Without a name, list them.

    What is measured is kept: the same command goes on where it was interrupted. Status 1 means that
    an experiment broke.

    Args:
        name: The experiment.
        listed: List the experiments.
        every: Run them all. One that has no such scale runs at the next smaller one.
        scale: small (a minute on two cores), gpu (minutes on one large GPU) or paper (what the
            paper did). Default: small.
        out: The folder that records are kept in. Default: reproduced.
        seeds: Networks for each setting, where an experiment has such a number.
        again: Measure anew what is kept.
        html: Write a report with all figures to this file.
        json: Print JSON instead of tables.
    """
    from orderone.gallery import EXPERIMENTS, SCALES  # torch and pandas load only here

    if (name is not None) + every + listed > 1:
        raise ValueError(
            "expected a name, --all or --list, got more than one of them; leave the others out"
        )
    if name is None and not every:
        no_use(
            "a list",
            "name an experiment, or --all",
            scale=scale,
            out=out,
            seeds=seeds,
            again=again,
            html=html,
        )
        _list(EXPERIMENTS.values(), json)
        return
    scale = one_of(SCALES[0] if scale is None else scale, SCALES, "scale")
    out = FOLDER if out is None else out
    if every:
        chosen = list(EXPERIMENTS.values())
    else:
        chosen = [EXPERIMENTS[one_of(name, EXPERIMENTS, "experiment")]]
    check_files({"html": html})
    check_folder(out, "out")
    given = scale, Path(out), again, None if seeds is None else count(seeds, "seeds")
    done = _run_all(chosen, *given) if every else [_alone(chosen[0], *given)]
    if json:
        told = [_plain(each) for each in done]
        show.print_json(told if every else told[0])
    else:
        _show(done)
    if html is not None and done:
        _write(html, done)
    if len(done) < len(chosen):
        raise SystemExit(1)


def _list(experiments: "Iterable[Experiment]", json: bool) -> None:
    if json:
        keys = ("name", "title", "claim", "method")
        show.print_json(
            [{k: getattr(e, k) for k in keys} | {"scales": list(e.scales)} for e in experiments]
        )
        return
    rows = [(e.name, e.title, ", ".join(e.scales)) for e in experiments]
    out = show.console()
    out.print(show.table("orderone reproduce NAME", ("name", "what it shows", "scales"), rows))
    out.print("s0 to s3 are the papers; `orderone cite s0 s1 s2 s3` says which")


def _run_all(
    chosen: "Sequence[Experiment]", scale: str, out: Path, again: bool, seeds: int | None
) -> "list[Reproduced]":
    """One that breaks is told and left out; the others run."""
    from orderone.gallery.run import has_seeds, nearest

    done = []
    for number, experiment in enumerate(chosen, 1):
        print(f"[{number} of {len(chosen)}] {experiment.name}", file=sys.stderr, flush=True)
        near = nearest(experiment, scale)
        try:
            done.append(
                _run(experiment, near, out, again, seeds if has_seeds(experiment, near) else None)
            )
        except ImportError as error:
            print(
                f"orderone: {experiment.name} cannot run: {error}; the others go on",
                file=sys.stderr,
                flush=True,
            )
        except Exception:
            traceback.print_exc()
            print(
                f"orderone: {experiment.name} broke; the others go on", file=sys.stderr, flush=True
            )
    return done


def _alone(
    experiment: "Experiment", scale: str, out: Path, again: bool, seeds: int | None
) -> "Reproduced":
    try:
        return _run(experiment, scale, out, again, seeds)
    except (
        ImportError
    ) as error:  # of a package that not everybody has, with the command that brings it
        raise ValueError(error) from error


def _run(
    experiment: "Experiment", scale: str, out: Path, again: bool, seeds: int | None
) -> "Reproduced":
    from orderone.gallery import reproduce as run

    with ExitStack() as stack:
        stack.enter_context(show.one_thread())
        move = stack.enter_context(bar(experiment.name))

        def tell(part: str, number: int, total: int) -> None:
            move(number - 1, total, f"{experiment.name}: {part}")
            if not sys.stderr.isatty():
                print(
                    f"{experiment.name}: {part} ({number} of {total})", file=sys.stderr, flush=True
                )

        result = run(experiment, scale, out, seeds=seeds, again=again, tell=tell)
        _ = (
            result.findings,
            result.pictures,
        )  # what cannot be judged or drawn breaks here, not in the report
        return result


def _plain(each: "Reproduced") -> dict[str, Any]:
    found = [vars(finding) for finding in each.findings]
    own = {
        "name": each.experiment.name,
        "scale": each.scale,
        "verdict": each.verdict,
        "corrected": each.corrected,
    }
    return own | {"findings": found, "provenance": each.provenance}


def _show(done: "Sequence[Reproduced]") -> None:
    out = show.console()
    if len(done) == 1:
        _details(done[0], out)
        return
    rows = [(e.experiment.name, e.scale, e.verdict, e.corrected, _seconds(e)) for e in done]
    head = ("name", "scale", "the paper", "as corrected", "seconds")
    out.print(show.table("Claims of the papers", head, rows))


def _details(each: "Reproduced", out: Any) -> None:
    from orderone.gallery import Grid

    for drawn in each.pictures:
        if isinstance(drawn, Grid):
            out.print(show.table(drawn.title, drawn.head, drawn.rows))
    words = {True: "holds", False: "does not hold", None: "unclear"}
    rows = [
        (
            f.claim,
            f"as corrected ({f.erratum})" if f.of == "corrected" else "the paper",
            words[f.holds],
            f.numbers,
        )
        for f in each.findings
    ]
    title = f"{each.experiment.name}, scale {each.scale}: {each.experiment.claim}"
    out.print(show.table(title, ("claim", "whose", "verdict", "measured"), rows))
    corrected = f"; as corrected: {each.corrected}" if each.corrected else ""
    out.print(show.coloured(f"the paper: {each.verdict}{corrected}"))


def _seconds(each: "Reproduced") -> str:
    return f"{sum(part['seconds'] for part in each.provenance['parts'].values()):.0f}"


def _write(html: str, done: "Sequence[Reproduced]") -> None:
    from orderone.report import write_gallery

    wrote(write_gallery(html, done))
