"""The same figures through matplotlib, for a paper or a README."""

import math
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from orderone.report.optional import need
from orderone.report.small_panel import GREY, GRID, INK, text
from orderone.report.transfer import RULES, ceiling, floor, line_through, sizes
from orderone.sweeping.optimum import INSIDE
from orderone.sweeping.transfer_text import headline, predicted, said, slope

WIDTH = 3.7
HEIGHT = 3.5
HEAD = 0.75  # inches: of a panel, and of the title


def write_transfer_png(t: Any, path: str | PathLike[str], title: str = "Transfer") -> Path:
    """One panel a rule with losses, and one with the best learning rates."""
    figure = need("matplotlib.figure", "png").Figure(dpi=150, facecolor="white")
    canvas = need("matplotlib.backends.backend_agg", "png").FigureCanvasAgg(
        figure
    )  # pyplot stays as it is
    panels = len(t.rules) + 1
    figure.set_size_inches(panels * WIDTH + 0.3, HEIGHT + HEAD)
    for k, rule in enumerate(t.rules):
        _losses(_axes(figure, k, panels), t, rule, first=k == 0)
    _drift(_axes(figure, panels - 1, panels), t)
    _head(figure, t, title)
    canvas.print_png(path)
    return Path(path)


def _axes(figure: Any, k: int, panels: int) -> Any:
    width, height = figure.get_size_inches()
    box = (k * WIDTH + 0.7, 0.5, WIDTH - 0.75, HEIGHT - 0.85)
    axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
    axes.tick_params(which="both", colors=GREY, labelsize=7.5)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _losses(axes: Any, t: Any, rule: str, first: bool) -> None:
    colours = dict(zip(sizes(t), _shades(len(sizes(t))), strict=True))
    top = ceiling(t)
    bottom = floor(t)
    for curve, best in zip(t.curves[rule], t.optima[rule], strict=True):
        colour = colours[curve.size]
        rates = 2.0**curve.x
        line = np.minimum(curve.mean, top)
        cut = curve.mean > top
        axes.plot(rates, line, color=colour, linewidth=1.4, label=f"{t.axis} {curve.size}")
        axes.plot(rates[~cut], line[~cut], "o", color=colour, markersize=3)
        axes.plot(rates[cut], line[cut], "x", color=colour, markersize=5)
        if best.beyond == INSIDE:
            axes.plot(
                [best.lr],
                [best.loss],
                marker="*",
                markersize=11,
                color=colour,
                markeredgecolor="white",
                zorder=5,
            )
        if best.beyond == INSIDE and not math.isinf(best.low):
            axes.plot(
                [2.0**best.low, 2.0**best.high],
                [best.loss] * 2,
                color=colour,
                linewidth=2.5,
                alpha=0.6,
            )
    axes.set_xscale("log")
    axes.set_ylim(bottom - 0.05 * (top - bottom), top + 0.05 * (top - bottom))
    axes.set_xlabel("lr", color=GREY, fontsize=9)
    if any((curve.mean > top).any() for curve in t.curves[rule]):
        at = {"transform": axes.transAxes, "ha": "right", "fontsize": 7, "color": GREY}
        text(axes, 0.99, 1.01, "crosses: diverged, or above", **at)
    axes.set_title(rule, fontsize=10, weight="bold", color=INK, loc="left", parse_math=False)
    if first:
        axes.set_ylabel("loss", color=GREY, fontsize=9)
        axes.legend(frameon=False, fontsize=7.5, labelcolor=GREY)


def _drift(axes: Any, t: Any) -> None:
    for rule, colour in zip(t.rules, RULES * len(t.rules), strict=False):
        known = [o for o in t.optima[rule] if o.beyond == INSIDE]
        d = t.drift[rule]
        if not known:
            continue
        label = f"{rule} {slope(d)}, predicted {predicted(d)}"
        axes.plot(
            [o.size for o in known],
            [o.lr for o in known],
            "o",
            color=colour,
            markersize=5,
            label=label,
        )
        for o in known if not math.isinf(known[0].low) else ():
            axes.plot([o.size] * 2, [2.0**o.low, 2.0**o.high], color=colour, linewidth=2, alpha=0.6)
        for power, style in [(d.slope, "-"), *((p, ":") for p in set(d.predicted))]:
            line = line_through(known, d.slope, power)
            axes.plot(line["x"], line["y"], style, color=colour, linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes(t), [str(size) for size in sizes(t)])
    axes.set_xlabel(t.axis, color=GREY, fontsize=9)
    axes.set_title("best lr; dotted: theory", fontsize=10, weight="bold", color=INK, loc="left")
    if axes.lines:
        axes.legend(frameon=False, fontsize=7, labelcolor=GREY)


def _head(figure: Any, t: Any, title: str) -> None:
    width, height = figure.get_size_inches()
    verdicts = "; ".join(f"{d.rule} {said(d.verdict)}" for d in t.drift.values())
    text(
        figure,
        0.14 / width,
        1 - 0.12 / height,
        f"{title}: {verdicts}",
        fontsize=12,
        weight="bold",
        va="top",
        color=INK,
    )
    text(figure, 0.14 / width, 1 - 0.42 / height, headline(t), fontsize=9, va="top", color=GREY)


def _shades(count: int) -> list[str]:
    colours = need("matplotlib.colors", "png")
    ends = np.array([colours.to_rgb("#a9c4e4"), colours.to_rgb("#0b2f5e")])
    shares = [k / max(1, count - 1) for k in range(count)]
    return [colours.to_hex((1 - share) * ends[0] + share * ends[1]) for share in shares]
