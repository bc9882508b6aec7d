"""Order and colours of verdicts."""

from collections import Counter

import pandas as pd

from orderone.core.errors import InputError
from orderone.report.inputs import CheckInput

ORDER = ("FAIL", "UNCLEAR", "SHRINKS", "PASS")

# The palette of Okabe and Ito, darkened for white text, with violet instead of blue, which people
# with tritanopia confuse with green. Pages always show the word as well as the colour.
COLOURS = {"FAIL": "#c65200", "UNCLEAR": "#e69f00", "SHRINKS": "#7a4fb5", "PASS": "#008562"}
INK_ON = {"FAIL": "#ffffff", "UNCLEAR": "#000000", "SHRINKS": "#ffffff", "PASS": "#ffffff"}
UNJUDGED = "#8a8f98"


def rank(verdict: object) -> int:
    """Return 0 for the worst verdict; unknown words come last."""
    if verdict in ORDER:
        return ORDER.index(verdict)
    return len(ORDER)


def ranked(check: CheckInput) -> pd.DataFrame:
    """Sort `check.exponents`: worst first, then in the order of the model, then the latest step.

    All figures follow this order: a panel shows the first row of its module and quantity.
    """
    exponents = check.exponents
    model_order = {name: i for i, name in enumerate(names(check, "module"))}
    keys = {
        "rank": exponents["verdict"].map(rank),
        "place": exponents["module"].map(model_order.get),
        "late": -exponents["step"].astype(float),
    }
    order = pd.DataFrame(keys).reset_index(drop=True).sort_values(list(keys), kind="stable").index
    return exponents.iloc[order].reset_index(drop=True)


def names(check: CheckInput, column: str) -> list[str]:
    """List modules or quantities in the order of their first record, which is the model's."""
    return list(dict.fromkeys([*check.frame[column], *check.exponents[column]]))


def first_quantity(check: CheckInput) -> str:
    """Choose the quantity to show first: the one with the largest number of worst verdicts.

    If everything passes, choose the change.
    """
    known = names(check, "quantity")
    if not known:
        message = "r.frame: expected records to draw, got none; measure at least one module"
        raise InputError(message, "nothing-to-draw", argument="r")
    if "change" in known:
        usual = "change"
    else:
        usual = known[0]
    judged = ranked(check).drop_duplicates(subset=["module", "quantity"])
    ranks = judged["verdict"].map(rank)
    worst = min(ranks, default=len(ORDER))
    if worst >= ORDER.index("PASS"):
        return usual
    counts = Counter(judged["quantity"][ranks == worst])
    return max([usual, *known], key=lambda name: counts[name])  # the first one if counts are equal
