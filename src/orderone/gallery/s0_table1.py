"""S0 Table 1: multipliers, initial sizes and learning rates of SP, NTK, muP and MF, for Adam with full alignment."""

from fractions import Fraction
from math import nan

import pandas as pd

from orderone import rules
from orderone.gallery.experiment import COLUMNS, Experiment

# The rates printed in the table: embedding, hidden, readout.
PRINTED = {"sp": "0 1 1", "ntk": "0 1/2 1/2", "mup": "1/2 1 1/2", "mf": "0 1/2 0"}


def run(seeds: int = 0) -> pd.DataFrame:
    """The solver's exponents beside the printed ones; nothing is simulated."""
    rows = []
    for name, printed in PRINTED.items():
        derived = rules.get(name, optimizer="adam", alignment="full").c
        for role, paper in zip(("embedding", "hidden", "readout"), printed.split(), strict=True):
            verdict = "holds" if derived[role] == Fraction(paper) else "FAILS"
            rows.append((name, f"c_{role}", paper, str(derived[role]), nan, nan, nan, verdict, verdict))
    return pd.DataFrame(rows, columns=COLUMNS)


TABLE1 = Experiment("s0-table1", "the largest stable learning rates of four parameterizations", run)
