"""S0 Table 2: sizes at initialization, with and without RMSNorm, for three variances of embedding
and readout.

The paper prints exponents of variances; we fit the RMS, which has half the exponent. Row 2 is
marked as with RMSNorm but has the entries of the network without it. It has the variance of the
softmax where the other rows have its second moment (errata S0.9, S0.10).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import pandas as pd

from orderone import rules
from orderone.gallery import exponent_table
from orderone.gallery.experiment import Experiment, Finding, Parts, Records
from orderone.gallery.s0.bigram import WIDTHS, Setting, fits, simulate
from orderone.theory.exponents import rms

# b of the embedding and the readout (variance n^{-2b}), and the printed exponents of the variances
# of h_1..h_{L+1}, h_{L+2}, h'_{L+2}, h'_{L+1}..h'_1, W'_{L+1}, W'_L..W'_1, W'_0.
ROWS = {
    "1, 1/d": ("0", "1/2", (0, 0, 0, -1, 0, -1, -1)),
    "1/d, 1/d": ("1/2", "1/2", (-1, -1, -1, -1, -1, -2, -1)),
    "1, 1": ("0", "0", (0, 1, 0, 0, 0, 0, 0)),
}
DEPTH = 3
GROUPS = (
    [f"h{i}" for i in range(1, DEPTH + 2)],
    [f"h{DEPTH + 2}"],
    [f"h'{DEPTH + 2}"],
    [f"h'{i}" for i in range(DEPTH + 1, 0, -1)],
    [f"W'{DEPTH + 1}"],
    [f"W'{i}" for i in range(DEPTH, 0, -1)],
    ["W'0"],
)
TOKENS = tuple(range(10))
CONFIDENCE = 0.9999  # of each of nearly a hundred intervals


@dataclass(frozen=True)
class Settings:
    seeds: int  # networks at the largest width
    widths: tuple[int, ...] = WIDTHS


def parts(settings: Settings) -> Parts:
    measured = {}
    for norm in (False, True):
        suffix = "with norm" if norm else "without norm"
        for number, label in enumerate(ROWS, 1):
            measured[f"row {number} {suffix}"] = partial(measure, label, norm, settings)
    return measured


def measure(label: str, norm: bool, settings: Settings) -> pd.DataFrame:
    embedding, readout, printed = ROWS[label]
    p = rules.custom(label, a=(0, 0, 0), b=(embedding, "1/2", readout), c=(0, 0, 0))
    setting = Setting(p, norm=norm, tokens=TOKENS, targets=TOKENS[::-1])
    fit = fits(
        simulate(setting, settings.widths, settings.seeds), confidence=CONFIDENCE, correction=False
    )
    predicted = rms(p, DEPTH, norm)
    row = f"{label} norm" if norm else label
    lines = []
    for group, variance in zip(GROUPS, printed, strict=True):
        paper = Fraction(variance, 2)
        for name in group:
            lines.append(exponent_table.line(row, name, paper, predicted[name], fit.loc[name]))
    return pd.DataFrame(lines, columns=exponent_table.COLUMNS)


def judge(records: Records) -> list[Finding]:
    return exponent_table.findings(
        pd.concat(records.values()), {"1/d, 1/d": "S0.10", "1/d, 1/d norm": "S0.9"}
    )


EXPERIMENT = Experiment(
    name="s0-table2",
    title="Sizes at initialization",
    place="Table 2",
    claim=(
        "The table has the exponents of activations and gradients in the width, for three variances"
        " of embedding and readout, with and without RMSNorm."
    ),
    method=(
        "Bigram networks with three hidden layers, backpropagation in double precision; a power of"
        " the width is fitted to the RMS of each quantity (half the exponent of the printed"
        " variance), with 99.99 % intervals."
    ),
    scales={"small": Settings(seeds=8), "paper": Settings(seeds=32, widths=(*WIDTHS, 2048))},
    parts=parts,
    judge=judge,
    draw=lambda records: exponent_table.drawn(
        "Exponents at initialization", pd.concat(records.values())
    ),
    errata=("S0.9", "S0.10"),
)
