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
    rows = frame.map(lambda cell: f"{cell:+.3f}" if isinstance(cell, float) else cell).itertuples(index=False)
    out.print(show.table(f"{name}: {experiment.claim}", list(frame.columns), rows))
