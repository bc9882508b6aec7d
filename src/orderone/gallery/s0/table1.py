"""S0 Table 1: multipliers, initial sizes and learning rates of SP, NTK, muP and MF, for Adam with
full alignment.

The learning rates follow from (21) and (22). The caption also says that all four stay stable in
training. By (24), SP and NTK do only if omega = 1/2 at the readout. On training tokens omega is 1
from the first step on (erratum S0.5).
"""

from fractions import Fraction

import pandas as pd

from orderone import rules
from orderone.gallery import exponent_table
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.judge import finding
from orderone.gallery.s0.bigram import WIDTHS
from orderone.gallery.s0.table2 import Settings
from orderone.gallery.s0.table3 import CHANGE, exponents
from orderone.theory.exponents import rms

ROLES = ("embedding", "hidden", "readout")
# The rates printed in the table: embedding, hidden, readout.
PRINTED = {"sp": "0 1 1", "ntk": "0 1/2 1/2", "mup": "1/2 1 1/2", "mf": "0 1/2 0"}
CONFIDENCE = 0.998  # of each of four intervals
ERRATUM = "S0.5"


def parts(settings: Settings) -> Parts:
    return {"rates": derive} | {
        f"{name} in training": lambda name=name: train(name, settings) for name in PRINTED
    }


def derive() -> pd.DataFrame:
    """Return the exponents of the solver and the printed ones."""
    rows = []
    for name, printed in PRINTED.items():
        p = rules.get(name, optimizer="adam", alignment="full")
        for role, paper in zip(ROLES, printed.split(), strict=True):
            rows.append((name, role, str(p.a[role]), str(p.b[role]), str(p.c[role]), paper))
    return pd.DataFrame(rows, columns=["rule", "role", "a", "b", "c", "printed"])


def train(name: str, settings: Settings) -> pd.DataFrame:
    """Fit the change of the logits in one sign step on training tokens; n^0 is stable."""
    p = rules.get(name)
    predicted = rms(p, training=True, alignment="worst")[CHANGE]
    fit = exponents(p, settings, CONFIDENCE).loc[CHANGE]
    return pd.DataFrame(
        [exponent_table.line(name, "change of the logits", Fraction(0), predicted, fit)],
        columns=exponent_table.COLUMNS,
    )


def judge(records: Records) -> list[Finding]:
    findings = []
    for rule, lines in records["rates"].astype(str).groupby("rule", sort=False):
        right = (lines.c == lines.printed).all()
        numbers = f"derived c = {', '.join(lines.c)}; printed {', '.join(lines.printed)}"
        findings.append(
            finding(
                f"{rule}: the printed learning rates are the largest that (21) and (22) allow",
                bool(right),
                numbers,
            )
        )
    for _, line in _trained(records).iterrows():
        numbers = f"changes by n^{exponent_table.interval(line)} in a step"
        stable, derived = (
            exponent_table.holds(each, line) for each in (line.paper, line.predicted)
        )
        findings.append(finding(f"{line.row}: the logits stay stable in training", stable, numbers))
        if str(line.predicted) != str(line.paper):
            claim = (
                f"{line.row}: on training tokens the logits change by n^{line.predicted}, for omega"
                " = 1 at the readout"
            )
            findings.append(finding(claim, derived, numbers, ERRATUM))
    return findings


def draw(records: Records) -> list[Picture | Grid]:
    rates = records["rates"].astype(str)
    title = "Change of the logits in a step, at the learning rates of the table"
    return [
        Grid(
            "Multiplier n^-a, initial standard deviation n^-b, learning rate n^-c",
            tuple(rates.columns),
            rates.to_numpy().tolist(),
        ),
        exponent_table.picture(title, _trained(records)),
    ]


def _trained(records: Records) -> pd.DataFrame:
    return pd.concat(
        [frame for part, frame in records.items() if part != "rates"], ignore_index=True
    )


EXPERIMENT = Experiment(
    name="s0-table1",
    title="Four parameterizations",
    place="Table 1, (21)-(24)",
    claim=(
        "The table has the largest stable learning rates of SP, NTK, muP and MF for Adam with full"
        " alignment. All four are stable in training."
    ),
    method=(
        "Learning rates: the exact linear program over rational exponents. Stability: bigram"
        " networks with three hidden layers, one sign step at these learning rates in double"
        " precision, and a power of the width fitted to the RMS of the change of the logits, with"
        " 99.8 % intervals."
    ),
    scales={"small": Settings(seeds=8), "paper": Settings(seeds=32, widths=(*WIDTHS, 2048))},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=(ERRATUM,),
    version=2,
)
