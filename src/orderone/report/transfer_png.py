"""The figures of a transfer study drawn with matplotlib, for a paper or a README."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from orderone.core.colours import rule_colours
from orderone.core.optional import need
from orderone.report.beyond_grid import grid_ends
from orderone.report.inputs import FilePath, TransferInput
from orderone.report.small_panel import GREY, GRID, INK, text
from orderone.report.template import PURPOSE
from orderone.report.transfer import (
    ceiling,
    floor,
    line_through,
    rates_range,
    round_rates,
    run_range,
    sizes,
)
from orderone.sweeping.optimum import INSIDE, Curve, Optimum
from orderone.sweeping.transfer_text import headline, predicted, slope, verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # matplotlib is imported when something is drawn
    Axes = object
    Figure = object

# inches
WIDTH = 3.7  # of a panel
HEIGHT = 3.5  # of a panel
HEAD = 0.75  # of the title


def write_transfer_png(t: TransferInput, path: FilePath, title: str = "Transfer") -> Path:
    """Draw one panel per rule with losses, and one with the best learning rates."""
    figure = need("matplotlib.figure", "png", PURPOSE).Figure(dpi=150, facecolor="white")
    # a separate canvas: the state and backend of pyplot do not change
    canvas = need("matplotlib.backends.backend_agg", "png", PURPOSE).FigureCanvasAgg(figure)
    panels = len(t.rules) + 1
    figure.set_size_inches(panels * WIDTH + 0.3, HEIGHT + HEAD)
    for k, rule in enumerate(t.rules):
        _losses(_axes(figure, k), t, rule, first=k == 0)
    _drift(_axes(figure, panels - 1), t)
    _head(figure, t, title)
    canvas.print_png(path)
    return Path(path)


def _axes(figure: Figure, k: int) -> Axes:
    """Add the axes of panel `k`, counted from the left."""
    width, height = figure.get_size_inches()
    left = k * WIDTH + 0.7
    axes = figure.add_axes(
        (left / width, 0.5 / height, (WIDTH - 0.75) / width, (HEIGHT - 0.85) / height)
    )
    axes.tick_params(which="both", colors=GREY, labelsize=7.5)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _losses(axes: Axes, t: TransferInput, rule: str, first: bool) -> None:
    study_sizes = sizes(t)
    colours = dict(zip(study_sizes, _shades(len(study_sizes)), strict=True))
    top = ceiling(t)
    bottom = floor(t)
    for curve, best in zip(t.curves[rule], t.optima[rule], strict=True):
        _curve(axes, curve, f"{t.axis} {curve.size}", colours[curve.size], top)
        if best.beyond == INSIDE:
            _optimum(axes, best, colours[curve.size])
    axes.set_xscale("log")
    axes.set_xlim(run_range(t))
    axes.set_ylim(bottom - 0.05 * (top - bottom), top + 0.05 * (top - bottom))
    axes.set_xlabel(t.setting, color=GREY, fontsize=9, parse_math=False)
    if any((curve.mean > top).any() for curve in t.curves[rule]):
        words = "crosses: larger loss, or diverged"
        text(axes, 0.99, 1.01, words, transform=axes.transAxes, ha="right", fontsize=7, color=GREY)
    axes.set_title(rule, fontsize=10, weight="bold", color=INK, loc="left", parse_math=False)
    if first:
        axes.set_ylabel("loss", color=GREY, fontsize=9)
        axes.legend(frameon=False, fontsize=7.5, labelcolor=GREY)


def _curve(axes: Axes, curve: Curve, label: str, colour: str, top: float) -> None:
    """Draw mean losses; losses above `top` are crosses at the top edge."""
    rates = 2.0**curve.x
    line = np.minimum(curve.mean, top)
    cut = curve.mean > top
    axes.plot(rates, line, color=colour, linewidth=1.4, label=label)
    axes.plot(rates[~cut], line[~cut], "o", color=colour, markersize=3)
    axes.plot(rates[cut], line[cut], "x", color=colour, markersize=5)


def _optimum(axes: Axes, best: Optimum, colour: str) -> None:
    """Draw a star at the best learning rate, and a bar over its interval."""
    axes.plot(
        [best.lr],
        [best.loss],
        marker="*",
        markersize=11,
        color=colour,
        markeredgecolor="white",
        zorder=5,
    )
    if not math.isinf(best.low):
        interval = [2.0**best.low, 2.0**best.high]
        axes.plot(interval, [best.loss] * 2, color=colour, linewidth=2.5, alpha=0.6)


def _drift(axes: Axes, t: TransferInput) -> None:
    for rule, colour in rule_colours(t.rules).items():
        _drift_of_rule(axes, t, rule, colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    if known := rates_range(t):
        axes.set_ylim(known)
        labels = round_rates(*known)
        axes.set_yticks(labels, [f"{rate:.3g}" for rate in labels])
        axes.minorticks_off()
    axes.set_xticks(sizes(t), [str(size) for size in sizes(t)])
    axes.set_xlabel(t.axis, color=GREY, fontsize=9)
    title = f"best {t.setting}; dotted: predicted"
    axes.set_title(title, fontsize=10, weight="bold", color=INK, loc="left", parse_math=False)
    if axes.lines:
        box = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.85}
        axes.legend(fontsize=7, labelcolor=GREY, **box)


def _drift_of_rule(axes: Axes, t: TransferInput, rule: str, colour: str) -> None:
    """Draw the best learning rates as points, and lines of the fitted and predicted slopes."""
    ends = grid_ends(t.optima[rule])
    for end in ends:
        label = f"{rule}: outside of the grid" if end.size == ends[0].size else None
        marker = "^" if end.above else "v"
        axes.plot([end.size], [end.lr], marker, color=colour, fillstyle="none", label=label)
    known = [optimum for optimum in t.optima[rule] if optimum.beyond == INSIDE]
    if not known:
        return
    drift = t.drift[rule]
    rates = [optimum.lr for optimum in known]
    label = f"{rule} {slope(drift)}, predicted {predicted(drift)}"
    known_sizes = [optimum.size for optimum in known]
    axes.plot(known_sizes, rates, "o", color=colour, markersize=5, label=label)
    if not math.isinf(known[0].low):
        for optimum in known:
            interval = [2.0**optimum.low, 2.0**optimum.high]
            axes.plot([optimum.size] * 2, interval, color=colour, linewidth=2, alpha=0.6)
    lines = [(drift.slope, "-")]
    for power in set(drift.predicted):
        lines.append((power, ":"))
    for power, style in lines:
        line = line_through(known, drift.slope, power)
        axes.plot(line["x"], line["y"], style, color=colour, linewidth=1.2)


def _head(figure: Figure, t: TransferInput, title: str) -> None:
    width, height = figure.get_size_inches()
    left = 0.14 / width
    text(
        figure,
        left,
        1 - 0.12 / height,
        f"{title}: {verdicts(t)}",
        fontsize=12,
        weight="bold",
        va="top",
        color=INK,
    )
    text(figure, left, 1 - 0.42 / height, headline(t), fontsize=9, va="top", color=GREY)


def _shades(count: int) -> list[str]:
    """Return colours from light to dark blue."""
    colours = need("matplotlib.colors", "png", PURPOSE)
    light = np.array(colours.to_rgb("#a9c4e4"))
    dark = np.array(colours.to_rgb("#0b2f5e"))
    shades: list[str] = []
    for k in range(count):
        share = k / max(1, count - 1)
        shades.append(colours.to_hex((1 - share) * light + share * dark))
    return shades
