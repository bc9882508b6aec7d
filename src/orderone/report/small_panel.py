"""One module and one quantity in matplotlib: seeds, their mean, the fitted slope and the predicted
one."""

from typing import Any

import numpy as np

from orderone.report.cube import Cube, drawable, line
from orderone.report.optional import need
from orderone.report.verdicts import COLOURS, INK_ON, UNJUDGED

INK = "#1b1f24"
GREY = "#5c6570"
GRID = "#eceef1"
MONO = "DejaVu Sans Mono"
LONGEST = 34  # letters of a module's name that fit above a panel
FITTED = {"linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"}
MEAN = {"linewidth": 1.3}
PREDICTED = {"color": INK, "linewidth": 1.2, "dashes": (4, 2.5)}
SEED = {"marker": "o", "linestyle": "", "markersize": 3.3, "markeredgewidth": 0}


def draw(axes: Any, records: Cube, row: dict, xlabel: str) -> None:
    x = np.asarray(records.sizes, float)
    raw = records.panel(row["module"], row["quantity"], row["step"])
    rms = drawable(raw)
    colour = COLOURS.get(row["verdict"], UNJUDGED)
    axes.plot(x, line(x, rms, float(row["exponent"])), color=colour, **FITTED)
    axes.plot(x, _mean(rms), color=colour, **MEAN)
    axes.plot(x, line(x, rms, float(row["predicted"])), **PREDICTED)
    axes.plot(x, rms, color=colour, **SEED)
    _scales(axes, x)
    _frame(axes, colour, xlabel)
    _title(axes, row)
    _note(axes, raw, rms)


def legend(figure: Any, right: float, top: float) -> None:
    """One for all panels."""
    line2d = need("matplotlib.lines", "png").Line2D
    styles = {
        "one seed": SEED,
        "mean over seeds": MEAN,
        "fitted": FITTED,
        "predicted slope": PREDICTED,
    }
    handles = [
        line2d([], [], **({"color": GREY} | style), label=name) for name, style in styles.items()
    ]
    at = {
        "loc": "upper right",
        "bbox_to_anchor": (right, top),
        "ncols": 2,
        "borderpad": 0,
        "borderaxespad": 0,
    }
    figure.legend(handles=handles, frameon=False, fontsize=9, labelcolor=GREY, **at)


def text(where: Any, x: float, y: float, words: str, **style: Any) -> Any:
    """A dollar sign in a name is a dollar sign."""
    return where.text(x, y, _written(words, style.get("family")), parse_math=False, **style)


def _written(words: str, family: str | None) -> str:
    """With letters that the font lacks as their codes: a box would not say which."""
    font = need("matplotlib.font_manager", "png")
    glyphs = font.get_font(font.findfont(font.FontProperties(family=family)))
    there = [c.isprintable() and glyphs.get_char_index(ord(c)) for c in words]
    return "".join(
        c if ok else c.encode("unicode_escape").decode() for c, ok in zip(words, there, strict=True)
    )


def badge(where: Any, x: float, y: float, verdict: str, **style: Any) -> Any:
    box = {
        "boxstyle": "round,pad=0.2,rounding_size=0.25",
        "facecolor": COLOURS.get(verdict, UNJUDGED),
        "linewidth": 0,
    }
    ink = INK_ON.get(verdict, "#ffffff")
    return text(where, x, y, verdict or "not judged", color=ink, weight="bold", bbox=box, **style)


def _mean(rms: np.ndarray) -> np.ndarray:
    """Geometric, over the seeds that can be drawn; nan without any."""
    there = np.isfinite(rms)
    total = np.log(np.where(there, rms, 1)).sum(1)
    return np.where(there.any(1), np.exp(total / np.maximum(there.sum(1), 1)), np.nan)


def _scales(axes: Any, x: np.ndarray) -> None:
    """Slopes can be compared by eye: the y axis spans as many decades as the x axis, or more if the
    data do."""
    ticker = need("matplotlib.ticker", "png")
    span = np.log10(x[-1] / x[0]) or 1.0
    low, high = (
        np.log10(axes.dataLim.intervaly) if np.isfinite(axes.dataLim.minposy) else (-0.5, 0.5)
    )
    half = max(high - low, span) / 2 * 1.12
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(x[0] / 10 ** (span * 0.06), x[-1] * 10 ** (span * 0.06))
    axes.set_ylim(10 ** ((low + high) / 2 - half), 10 ** ((low + high) / 2 + half))
    axes.xaxis.set_major_locator(ticker.FixedLocator(_apart(x, span)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_locator(ticker.FixedLocator(_round(*axes.get_ylim())))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(_tick))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def _round(low: float, high: float) -> list[float]:
    """At most five round numbers between both, so that a label is where it says."""
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    values: list[float] = []
    for digits in ((1,), (1, 2, 5), range(1, 10), np.arange(10, 100) / 10):
        values = [
            float(digit * power)
            for power in powers
            for digit in digits
            if low <= digit * power <= high
        ]
        if len(values) >= 2:
            break
    return values[:: max(-(-len(values) // 5), 1)]


def _tick(value: float, _: Any = None) -> str:
    digits, power = f"{value:.1e}".split("e")
    if -3 <= int(power) <= 3:
        return f"{float(f'{value:.2g}'):g}"
    return ("" if digits == "1.0" else rf"${float(digits):g}\cdot$") + f"$10^{{{int(power)}}}$"


def _apart(x: np.ndarray, span: float) -> list[float]:
    """Labels that would touch are left out, the largest size first to stay."""
    kept: list[float] = []
    for size in x[::-1]:
        if not kept or np.log10(kept[-1] / size) > 0.055 * len(f"{kept[0]:g}") * span:
            kept.append(float(size))
    return kept


def _frame(axes: Any, colour: str, xlabel: str) -> None:
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=7.5, labelcolor=GREY, pad=3)
    axes.set_xlabel(xlabel, fontsize=8, color=GREY, labelpad=1.5)
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=1.1)


def _title(axes: Any, row: dict) -> None:
    name = _written(row["module"] or "(the model)", MONO)
    if len(name) <= LONGEST:
        short = name
    else:
        short = f"{name[: LONGEST // 3]}…{name[-(LONGEST - LONGEST // 3 - 1) :]}"
    above = {"transform": axes.transAxes, "va": "bottom"}
    text(axes, 0.0, 1.19, short, fontsize=7.8, family=MONO, color=INK, weight="bold", **above)
    badge(axes, 0.015, 1.05, row["verdict"], fontsize=6.6, **above)
    text(axes, 1.0, 1.05, _numbers(row), fontsize=7.4, color=GREY, ha="right", **above)


def _numbers(row: dict) -> str:
    if not np.isfinite(row["exponent"]):
        return ""
    words = f"{row['exponent']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
    words += f" vs {row['predicted']:.3g}" if np.isfinite(row["predicted"]) else ""
    return words.replace("-", "\N{MINUS SIGN}")


def _note(axes: Any, raw: np.ndarray, rms: np.ndarray) -> None:
    """Values that a logarithmic axis cannot show are counted in words."""
    zero = int((raw == 0).sum())
    bad = int((~np.isfinite(raw)).sum())
    parts = [
        f"{count} {word}"
        for count, word in ((zero, "zero"), (bad, "missing or not finite"))
        if count
    ]
    if parts:
        words = f"{', '.join(parts)} of {rms.size} points"
        text(axes, 0.03, 0.05, words, fontsize=6.5, color=GREY, transform=axes.transAxes)
