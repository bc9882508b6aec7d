"""`orderone reproduce`: tables of the papers, run again."""

from typing import Annotated

import tyro

from orderone.cli import show
from orderone.core.errors import one_of


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
    out = show.console()
    if json:
        frame = experiment.run(seeds or experiment.seeds)
        print(frame.to_json(orient="records", indent=2, force_ascii=False))
        return
    with out.status(f"running {name}"):
        frame = experiment.run(seeds or experiment.seeds)
    out.print(show.table(f"{name}: {experiment.claim}", *_cells(frame)))


def _cells(frame):
    """Exponents with their intervals in one column, so that a table fits a terminal."""
    measured = [
        f"{x:+.2f} [{low:+.2f}, {high:+.2f}]" if x == x else ""
        for x, low, high in zip(frame.measured, frame.low, frame.high, strict=True)
    ]
    shown = frame.assign(measured=measured)[
        ["row", "quantity", "paper", "predicted", "measured", "paper_holds", "verdict"]
    ]
    return ("row", "quantity", "paper", "theory", "measured", "paper", "theory"), shown.itertuples(index=False)
