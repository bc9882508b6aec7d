"""Draw the loss at the target for standard practice and muP, with two starts.

    python benchmarks/start_picture.py [CSV] [PNG]

The records are those of `start_study.py`, piece "table": Llama, rates tuned at width 128 and
carried to width 1024, or tuned at width 1024. A point is the mean over seeds at the best rate, its
whisker the 95 % interval of Student's t.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas

mpl.use("Agg")
import matplotlib.pyplot as plt
from scipy.stats import t as student

from orderone.core.colours import rule_colours

ROOT = Path(__file__).parents[1]
CSV = ROOT / "docs/results/start-study.csv"
PNG = ROOT / "docs/_static/start-llama.png"
BASE = 128
TARGET = 1024
# rule, start, width at which the rate is tuned, label
ROWS = (
    ("standard", "keep", BASE, "standard, rate from width 128"),
    ("mup", "keep", BASE, "muP, rate from width 128"),
    ("standard", "keep", TARGET, "standard, tuned at width 1024"),
    ("mup", "fan-in", BASE, "muP, init='fan-in', rate from width 128"),
    ("standard", "fan-in", TARGET, "standard, init='fan-in', tuned at width 1024"),
)


def loss_at_target(frame: Any, rule: str, init: str, tuned_at: int) -> tuple[float, float]:
    """Return the mean loss at the target with the best rate of a width, and half its interval."""
    rows = frame[(frame["rule"] == rule) & (frame["init"] == init)]
    # at the base all rules are the same network, and the records have it once
    tuned = frame[(frame["init"] == init) & (frame["width"] == tuned_at)]
    if tuned_at == TARGET:
        tuned = rows[rows["width"] == TARGET]
    best = float(tuned.groupby("lr")["loss"].mean().idxmin())
    losses = rows[(rows["width"] == TARGET) & (rows["lr"] == best)]["loss"].to_numpy(float)
    reach = float(student.ppf(0.975, len(losses) - 1)) * losses.std(ddof=1) / len(losses) ** 0.5
    return float(losses.mean()), float(reach)


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else CSV
    picture = Path(sys.argv[2]) if len(sys.argv) > 2 else PNG
    frame = pandas.read_csv(source)
    frame = frame[frame["piece"] == "table"]
    colours = rule_colours(("standard", "mup"))
    figure, axes = plt.subplots(figsize=(7.4, 2.5), dpi=150, layout="constrained")
    for k, (rule, init, tuned_at, label) in enumerate(ROWS):
        mean, reach = loss_at_target(frame, rule, init, tuned_at)
        print(f"{label}: {mean:.3f} +- {reach:.3f}")
        filled = colours[rule] if tuned_at == BASE else "white"
        axes.errorbar(
            mean,
            -k,
            xerr=reach,
            fmt="o",
            color=colours[rule],
            markerfacecolor=filled,
            markersize=8,
            capsize=4,
        )
        axes.text(mean + reach + 0.025, -k, f"{mean:.3f}", va="center", fontsize=9)
    axes.set_yticks([-k for k in range(len(ROWS))], [label for *_, label in ROWS], fontsize=9)
    axes.set_xlabel(f"held-out loss at width {TARGET} (95 % intervals, three seeds)", fontsize=9)
    axes.set_xlim(1.0, 2.2)
    axes.set_ylim(0.6 - len(ROWS), 0.6)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    title = "Llama, 400 steps. Filled: tuned on the small model only. Open: tuned on the large one"
    axes.set_title(title, fontsize=9, loc="left", x=-0.55)
    figure.savefig(picture)


if __name__ == "__main__":
    main()
