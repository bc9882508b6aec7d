"""S0 Table 2: sizes at initialization, with and without RMSNorm, for three variances of embedding and readout.

The paper prints variances, we fit RMS: half the exponent. Row 2 carries the mark for RMSNorm but the entries of the network
without it, and the variance of the softmax where the other rows have its second moment (errata S0.9, S0.10): the column
`paper_holds` shows it.
"""

from fractions import Fraction

import pandas as pd

from orderone import rules
from orderone.gallery.bigram import Setting, fits, simulate
from orderone.gallery.experiment import COLUMNS, Experiment, compare
from orderone.theory.exponents import rms

# b of the embedding and the readout (variance n^{-2b}), and the printed exponents of the variances of
# h_1..h_{L+1}, h_{L+2}, h'_{L+2}, h'_{L+1}..h'_1, W'_{L+1}, W'_L..W'_1, W'_0.
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
CONFIDENCE = 0.9999  # of each interval; there are nearly a hundred of them


def run(seeds: int = 16) -> pd.DataFrame:
    rows = []
    for norm in (False, True):
        for label, (embedding, readout, printed) in ROWS.items():
            p = rules.custom(label, a=(0, 0, 0), b=(embedding, "1/2", readout), c=(0, 0, 0))
            setting = Setting(p, norm=norm, tokens=TOKENS, targets=TOKENS[::-1])
            fit = fits(simulate(setting, seeds=seeds), confidence=CONFIDENCE, correction=False)
            predicted = rms(p, DEPTH, norm)
            rows += [
                compare(
                    f"{label}{' norm' if norm else ''}", name, Fraction(variance, 2), predicted[name], fit.loc[name]
                )
                for group, variance in zip(GROUPS, printed, strict=True)
                for name in group
            ]
    return pd.DataFrame(rows, columns=COLUMNS)


TABLE2 = Experiment("s0-table2", "RMS of activations and gradients at initialization", run)
