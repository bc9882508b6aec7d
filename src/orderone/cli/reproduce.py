"""`orderone reproduce`: tables of the papers, run again."""

from typing import Annotated

import tyro

from orderone.cli import show
from orderone.core.errors import one_of
from orderone.core.exact import count


def reproduce(
    name: Annotated[str | None, tyro.conf.Positional] = None, /, seeds: int | None = None, json: bool = False
) -> None:
    """Run a table of the papers: what it claims, what theory predicts, what networks do. Without a name, list them.

    Args:
        name: The experiment.
        seeds: Networks at the largest width (default: enough for narrow intervals).
        json: Print JSON instead of a table.
    """
    from orderone.gallery import EXPERIMENTS  # torch and pandas load only here

    if name is None:
        rows = [(e.name, e.claim) for e in EXPERIMENTS.values()]
        if json:
            show.print_json(dict(rows))
        else:
            show.console().print(show.table("orderone reproduce NAME", ("name", "what the paper claims"), rows))
        return
    experiment = EXPERIMENTS[one_of(name, EXPERIMENTS, "experiment")]
    networks = experiment.seeds if seeds is None else count(seeds, "seeds")
    out = show.console()
    with show.one_thread(), out.status(f"running {experiment.name}"):
        frame = experiment.run(networks)
    if json:
        print(frame.to_json(orient="records", indent=2, force_ascii=False))
    else:
        out.print(show.table(f"{experiment.name}: {experiment.claim}", *_cells(frame)))
        kept = {who: (frame[who] == "holds").sum() for who in ("verdict", "paper_holds")}
        out.print(f"of {len(frame)} lines, theory holds in {kept['verdict']}, the paper in {kept['paper_holds']}")


def _cells(frame):
    """Exponents with their intervals in one column, so that a table fits a terminal."""
    measured = [
        f"{x:+.2f} [{low:+.2f}, {high:+.2f}]" if x == x else ""
        for x, low, high in zip(frame.measured, frame.low, frame.high, strict=True)
    ]
    columns = ["row", "quantity", "paper", "paper_holds", "predicted", "verdict", "measured"]
    titles = ("row", "quantity", "paper", "holds?", "theory", "holds?", "measured")
    return titles, frame.assign(measured=measured)[columns].itertuples(index=False)
