"""Figures of the studies, drawn from their records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from orderone.core.colours import rule_colours

TOLERANCE = 0.25  # octaves per doubling, as in `Transfer`


@dataclass(frozen=True)
class DriftPoint:
    """Drift of the best learning rate of one model with one rule, with its interval."""

    label: str
    rule: str
    slope: float
    low: float
    high: float


def draw_drifts(points: Sequence[DriftPoint], path: Path) -> None:
    """Draw one line per model: its drift with every rule, and the tolerance as a band."""
    labels = list(dict.fromkeys(point.label for point in points))
    rules = list(dict.fromkeys(point.rule for point in points))
    colours = rule_colours(rules)
    height = 1.1 + 0.36 * len(labels)
    figure, axes = plt.subplots(figsize=(7.4, height), dpi=150, layout="constrained")
    axes.axvspan(-TOLERANCE, TOLERANCE, color="#e6e6e6", label="transfers: within 0.25")
    axes.axvline(0, color="#888888", linewidth=0.8)
    for rule in rules:
        chosen = [point for point in points if point.rule == rule]
        slopes = [point.slope for point in chosen]
        below = [point.slope - point.low for point in chosen]
        above = [point.high - point.slope for point in chosen]
        axes.errorbar(
            slopes,
            [labels.index(point.label) for point in chosen],
            xerr=[below, above],
            fmt="o",
            capsize=3,
            color=colours[rule],
            label=rule,
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("drift of the best learning rate, octaves per doubling of the width")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=3, frameon=False)
    figure.savefig(path)
    plt.close(figure)
