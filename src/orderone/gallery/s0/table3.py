"""S0 Table 3: sizes in training with sign updates at the learning rates of Table 1, and the change
of the logits in one step.

The row "SP (A.2)" assumes that W Δh into the logits does not grow; "SP (31)" that it grows like
sqrt(n). The second is true on training tokens (erratum S0.5). Both rows are the same network, so
their derived exponents are those of the second row.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import cache

import pandas as pd

from orderone import rules
from orderone.gallery import exponent_table
from orderone.gallery.experiment import Experiment, Finding, Parts, Records
from orderone.gallery.s0.bigram import WIDTHS, Setting, fits, simulate
from orderone.gallery.s0.table2 import CONFIDENCE, DEPTH, GROUPS, Settings
from orderone.theory.exponents import Parameterization, rms

CHANGE = f"Δh{DEPTH + 2}"
# Columns of the table: h_1..h_{L+1}, Δh_{L+2}, h'_{L+2}, h'_{L+1}..h'_1, W'_{L+1}, W'_L..W'_1,
# W'_0.
COLUMN_GROUPS = (GROUPS[0], [CHANGE], *GROUPS[2:])


def rows() -> dict[str, tuple[Parameterization, str]]:
    """Return the rule and the printed exponents of each row."""
    readout = rules.custom("sp+readout", a=(0, 0, "1/2"), b=(0, "1/2", "1/2"))
    return {
        "SP (A.2)": (rules.get("sp"), "0 0 0 -1/2 0 -1/2 -1/2"),
        "SP (31)": (rules.get("sp"), "0 1/2 0 -1/2 0 -1/2 -1/2"),
        "SP+readout": (readout, "0 0 0 -1 -1/2 -1 -1"),
        "muP": (rules.get("mup"), "0 0 0 -1 -1/2 -1 -1/2"),
    }


def parts(settings: Settings) -> Parts:
    simulated = cache(lambda p: exponents(p, settings))  # the first two rows are one network
    return {name: lambda name=name: measure(name, simulated) for name in rows()}


def measure(name: str, simulated: Callable[[Parameterization], pd.DataFrame]) -> pd.DataFrame:
    p, printed = rows()[name]
    predicted = rms(p, DEPTH, training=True, alignment="worst")
    fit = simulated(p)
    lines = []
    for group, paper in zip(COLUMN_GROUPS, map(Fraction, printed.split()), strict=True):
        for quantity in group:
            exponent = predicted[quantity]
            lines.append(exponent_table.line(name, quantity, paper, exponent, fit.loc[quantity]))
    return pd.DataFrame(lines, columns=exponent_table.COLUMNS)


def exponents(
    p: Parameterization, settings: Settings, confidence: float = CONFIDENCE
) -> pd.DataFrame:
    """Return exponents after one sign step on one token with two targets, whose gradient cannot
    vanish.

    Δh_{L+2} is the sum of W Δh, ΔW h and ΔW Δh, which have different powers, so its fit includes
    the n^{-1/2} correction.
    """
    frame = simulate(
        Setting(p, steps=1, scale=0.005, tokens=(0, 0), targets=(1, 2)),
        settings.widths,
        settings.seeds,
    )
    plain = fits(frame, confidence=confidence, correction=False)
    bent = fits(frame, confidence=confidence, correction=True)
    plain.loc[CHANGE] = bent.loc[CHANGE]
    return plain


def judge(records: Records) -> list[Finding]:
    return exponent_table.findings(pd.concat(records.values()), {"SP (A.2)": "S0.5"})


EXPERIMENT = Experiment(
    name="s0-table3",
    title="Sizes in training",
    place="Table 3",
    claim=(
        "The table has the exponents of activations, gradients and the change of the logits in the"
        " width, after an update at the learning rates of Table 1."
    ),
    method=(
        "Bigram networks with three hidden layers, one sign step in double precision; a power of"
        " the width is fitted to the RMS of each quantity, with 99.99 % intervals."
    ),
    scales={"small": Settings(seeds=12), "paper": Settings(seeds=32, widths=(*WIDTHS, 2048))},
    parts=parts,
    judge=judge,
    draw=lambda records: exponent_table.drawn("Exponents in training", pd.concat(records.values())),
    errata=("S0.5",),
    version=2,
)
