"""Verdicts: what comes first, and in which colour."""

from collections import Counter
from typing import Any

import pandas as pd

ORDER = ("FAIL", "UNCLEAR", "SHRINKS", "PASS")

# After Okabe and Ito, but dark enough for white words, and with a violet: their blue is the green
# of the blue-blind. The word always stands beside the colour.
COLOURS = {"FAIL": "#c65200", "UNCLEAR": "#e69f00", "SHRINKS": "#7a4fb5", "PASS": "#008562"}
INK_ON = {"FAIL": "#ffffff", "UNCLEAR": "#000000", "SHRINKS": "#ffffff", "PASS": "#ffffff"}
UNJUDGED = "#8a8f98"


def rank(verdict: object) -> int:
    """0 is the worst; a word that is none of ours comes last."""
    if verdict in ORDER:
        return ORDER.index(verdict)
    return len(ORDER)


def ranked(r: Any) -> pd.DataFrame:
    """`r.exponents`, worst first, then in the order of the model, then the latest step first.

    Everything that is drawn follows this order: the first row of a module and a quantity is the one
    its panel shows.
    """
    model_order = {name: i for i, name in enumerate(names(r, "module"))}
    keys = {
        "rank": r.exponents["verdict"].map(rank),
        "place": r.exponents["module"].map(model_order),
        "late": -r.exponents["step"].astype(float),
    }
    order = pd.DataFrame(keys).reset_index(drop=True).sort_values(list(keys), kind="stable").index
    return r.exponents.iloc[order].reset_index(drop=True)


def names(r: Any, column: str) -> list[str]:
    """Modules or quantities, in the order of their first record, which is that of the model."""
    return list(dict.fromkeys([*r.frame[column], *r.exponents[column]]))


def first_quantity(r: Any) -> str:
    """What to look at first: the quantity with most of the worst verdicts; if all is well, the
    change."""
    known = names(r, "quantity")
    if not known:
        raise ValueError("r.frame: expected records to draw, got none; measure at least one module")
    usual = "change" if "change" in known else known[0]
    judged = ranked(r).drop_duplicates(subset=["module", "quantity"])
    worst = min(judged["verdict"].map(rank), default=len(ORDER))
    if worst >= ORDER.index("PASS"):
        return usual
    counts = Counter(judged["quantity"][judged["verdict"].map(rank) == worst])
    return max([usual, *known], key=lambda name: counts[name])  # the first of equals
