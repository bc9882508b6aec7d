"""Tables of the studies in Markdown: one line per transfer study."""

from typing import cast

import pandas

import orderone as o1

RESULTS = (
    "drift of the best rate, octaves per doubling",
    "verdict",
    "best losses",
    "extra loss at the largest size with the best rate of the smallest",
)


def header(*columns: str) -> str:
    """Return the head of a table: these columns, and those of `transfer_cells`."""
    names = [*columns, *RESULTS]
    return line(names) + "\n" + line(["---"] * len(names))


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def transfer_study(rows: pandas.DataFrame, size: str, rate: str = "lr") -> o1.Transfer:
    """Return the transfer study of records.

    The column `size` is in the place of the width, and `rate` has the rates that were tuned.
    """
    table = cast(pandas.DataFrame, rows[["seed", "loss", "diverged"]])
    return o1.Transfer.from_frame(table.assign(width=rows[size], lr=rows[rate]))


def transfer_cells(rows: pandas.DataFrame, size: str, rate: str = "lr") -> list[str]:
    """Return the sizes, and the cells of `RESULTS`; for the columns see `transfer_study`."""
    study = transfer_study(rows, size, rate)
    drift = next(iter(study.drift.values()))
    return [
        ", ".join(str(value) for value in study.frame["width"]),
        f"{drift.slope:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]",
        drift.verdict,
        ", ".join(f"{loss:.3f}" for loss in study.frame["loss"]),
        f"{study.frame.iloc[-1]['regret']:+.4f}",
    ]
