"""S0 Table 1: multipliers, initial sizes and learning rates of SP, NTK, muP and MF, for Adam with full alignment."""

from dataclasses import dataclass

import pandas as pd

from orderone import rules
from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Records

ROLES = ("embedding", "hidden", "readout")
# The rates printed in the table: embedding, hidden, readout.
PRINTED = {"sp": "0 1 1", "ntk": "0 1/2 1/2", "mup": "1/2 1 1/2", "mf": "0 1/2 0"}


@dataclass(frozen=True)
class Settings:
    """Nothing is simulated: the solver has no settings."""


def parts(settings: Settings) -> Parts:
    return {"rates": derive}


def derive() -> pd.DataFrame:
    """The solver's exponents beside the printed ones."""
    rows = []
    for name, printed in PRINTED.items():
        p = rules.get(name, optimizer="adam", alignment="full")
        for role, paper in zip(ROLES, printed.split(), strict=True):
            rows.append((name, role, str(p.a[role]), str(p.b[role]), str(p.c[role]), paper))
    return pd.DataFrame(rows, columns=["rule", "role", "a", "b", "c", "printed"])


def judge(records: Records) -> list[Finding]:
    found = []
    for rule, lines in records["rates"].astype(str).groupby("rule", sort=False):
        right = (lines.c == lines.printed).all()
        numbers = f"derived c = {', '.join(lines.c)}; printed {', '.join(lines.printed)}"
        found.append(Finding(f"{rule}: the largest stable learning rates for Adam", bool(right), numbers))
    return found


def draw(records: Records) -> list[Grid]:
    frame = records["rates"].astype(str)
    return [Grid("Weights n^-a W, deviation n^-b, learning rate n^-c", tuple(frame.columns), frame.to_numpy().tolist())]


EXPERIMENT = Experiment(
    name="s0-table1",
    title="Four parameterizations",
    claim="The largest stable learning rates of SP, NTK, muP and MF for Adam with full alignment.",
    method="The exact linear program over rational exponents; nothing is simulated.",
    scales={"small": Settings(), "paper": Settings()},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S0.5",),
)
