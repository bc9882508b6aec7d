"""S0 Table 3: sizes in training with sign updates at the rates of Table 1, and the change of the logits in one step.

"SP (A.2)" assumes that W Δh into the logits does not grow; "SP (31)" that it grows like sqrt(n). On training tokens the
second is what happens (erratum S0.5), so the first row's Δh must fail, and does.
"""

from fractions import Fraction

import pandas as pd

from orderone import rules
from orderone.gallery.bigram import Setting, fits, simulate
from orderone.gallery.experiment import COLUMNS, Experiment, compare
from orderone.gallery.s0_table2 import CONFIDENCE, DEPTH, GROUPS
from orderone.theory.exponents import Parameterization, rms

CHANGE = f"Δh{DEPTH + 2}"
# Columns of the table: h_1..h_{L+1}, Δh_{L+2}, h'_{L+2}, h'_{L+1}..h'_1, W'_{L+1}, W'_L..W'_1, W'_0.
COLUMN_GROUPS = (GROUPS[0], [CHANGE], *GROUPS[2:])


def rows() -> dict[str, tuple[Parameterization, str, str]]:
    """Rule, alignment, and the printed exponents."""
    readout = rules.custom("sp+readout", a=(0, 0, "1/2"), b=(0, "1/2", "1/2"))
    return {
        "SP (A.2)": (rules.get("sp"), "full", "0 0 0 -1/2 0 -1/2 -1/2"),
        "SP (31)": (rules.get("sp"), "worst", "0 1/2 0 -1/2 0 -1/2 -1/2"),
        "SP+readout": (readout, "worst", "0 0 0 -1 -1/2 -1 -1"),
        "muP": (rules.get("mup"), "worst", "0 0 0 -1 -1/2 -1 -1/2"),
    }


def run(seeds: int = 16) -> pd.DataFrame:
    table, measured = [], {}
    for label, (p, alignment, printed) in rows().items():
        if p.name not in measured:
            measured[p.name] = measure(p, seeds)
        predicted = rms(p, DEPTH, training=True, alignment=alignment)
        table += [
            compare(label, name, Fraction(paper), predicted[name], measured[p.name].loc[name])
            for group, paper in zip(COLUMN_GROUPS, printed.split(), strict=True)
            for name in group
        ]
    return pd.DataFrame(table, columns=COLUMNS)


def measure(p: Parameterization, seeds: int, confidence: float = CONFIDENCE) -> pd.DataFrame:
    """Exponents after one sign step. One token with two answers: its gradient cannot vanish, however far logits move.

    Δh_{L+2} adds W Δh, ΔW h and ΔW Δh, each with a power of its own, so its fit carries the n^{-1/2} correction.
    """
    frame = simulate(Setting(p, steps=1, scale=0.005, tokens=(0, 0), targets=(1, 2)), seeds=seeds)
    plain, bent = (fits(frame, confidence=confidence, correction=correction) for correction in (False, True))
    plain.loc[CHANGE] = bent.loc[CHANGE]
    return plain


TABLE3 = Experiment("s0-table3", "RMS of activations, gradients and the logits' change in training", run)
