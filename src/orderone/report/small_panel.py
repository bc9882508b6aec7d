"""One module and one quantity in matplotlib: seeds, their mean, the fitted and predicted slope."""

import math
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from orderone.core.optional import need
from orderone.report.cube import Cube, drawable, line
from orderone.report.template import PURPOSE
from orderone.report.verdicts import COLOURS, INK_ON, UNJUDGED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text
else:  # matplotlib is loaded when something is drawn
    Axes = object
    Figure = object
    Text = object

INK = "#1b1f24"
GREY = "#5c6570"
GRID = "#eceef1"
MONO = "DejaVu Sans Mono"
LONGEST = 34  # letters of a module's name that fit above a panel
FITTED: dict[str, Any] = {"linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"}
MEAN: dict[str, Any] = {"linewidth": 1.3}
PREDICTED: dict[str, Any] = {"color": INK, "linewidth": 1.2, "dashes": (4, 2.5)}
SEED: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 3.3, "markeredgewidth": 0}


class Row(TypedDict):
    """Verdict on a module and a quantity; without one, numbers are nan and the verdict is ""."""

    module: str
    quantity: str
    step: float
    exponent: float
    low: float
    high: float
    predicted: float
    verdict: str


def unjudged_row(module: str, quantity: str) -> Row:
    """Return the row of a module that has records but no verdict."""
    return {
        "module": module,
        "quantity": quantity,
        "step": math.nan,
        "exponent": math.nan,
        "low": math.nan,
        "high": math.nan,
        "predicted": math.nan,
        "verdict": "",
    }


def draw(axes: Axes, records: Cube, row: Row, xlabel: str) -> None:
    """Draw the panel of `row`."""
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
    _note(axes, raw)


def legend(figure: Figure, right: float, top: float) -> None:
    """Draw one legend for all panels."""
    line2d = need("matplotlib.lines", "png", PURPOSE).Line2D
    styles = {
        "one seed": SEED,
        "mean over seeds": MEAN,
        "fitted": FITTED,
        "predicted slope": PREDICTED,
    }
    handles = []
    for name, style in styles.items():
        handles.append(line2d([], [], **({"color": GREY} | style), label=name))
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(right, top),
        ncols=2,
        borderpad=0,
        borderaxespad=0,
        frameon=False,
        fontsize=9,
        labelcolor=GREY,
    )


def text(parent: Axes | Figure, x: float, y: float, words: str, **style: Any) -> Text:
    """Write text without interpreting dollar signs as mathematics."""
    printable = _printable(words, style.get("family"))
    return parent.text(x, y, printable, parse_math=False, **style)


def _printable(words: str, family: str | None) -> str:
    """Replace characters that the font lacks by escape sequences, which can be read."""
    font = need("matplotlib.font_manager", "png", PURPOSE)
    glyphs = font.get_font(font.findfont(font.FontProperties(family=family)))
    letters = []
    for letter in words:
        if letter.isprintable() and glyphs.get_char_index(ord(letter)):
            letters.append(letter)
        else:
            letters.append(letter.encode("unicode_escape").decode())
    return "".join(letters)


def badge(parent: Axes | Figure, x: float, y: float, verdict: str, **style: Any) -> Text:
    """Write a verdict on a background of its colour."""
    box = {
        "boxstyle": "round,pad=0.2,rounding_size=0.25",
        "facecolor": COLOURS.get(verdict, UNJUDGED),
        "linewidth": 0,
    }
    ink = INK_ON.get(verdict, "#ffffff")
    return text(parent, x, y, verdict or "not judged", color=ink, weight="bold", bbox=box, **style)


def _mean(rms: np.ndarray) -> np.ndarray:
    """Return the geometric mean over the seeds that can be drawn; nan without any."""
    finite = np.isfinite(rms)
    total = np.log(np.where(finite, rms, 1)).sum(1)
    return np.where(finite.any(1), np.exp(total / np.maximum(finite.sum(1), 1)), np.nan)


def _scales(axes: Axes, x: np.ndarray) -> None:
    """Make slopes comparable between panels: y spans as many decades as x, or more."""
    ticker = need("matplotlib.ticker", "png", PURPOSE)
    span = np.log10(x[-1] / x[0]) or 1.0
    low = -0.5
    high = 0.5
    if np.isfinite(axes.dataLim.minposy):
        low, high = np.log10(axes.dataLim.intervaly)
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
    """Return at most five round numbers between `low` and `high`, so that labels are exact."""
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    candidates = (
        np.array([1]),
        np.array([1, 2, 5]),
        np.arange(1, 10),
        np.arange(10, 100) / 10,
    )
    values = np.array([])
    for digits in candidates:
        values = np.outer(powers, digits).ravel()
        values = values[(low <= values) & (values <= high)]
        if len(values) >= 2:
            break
    every = max(math.ceil(len(values) / 5), 1)
    return values[::every].tolist()


def _tick(value: float, position: int | None = None) -> str:
    digits, power = f"{value:.1e}".split("e")
    if -3 <= int(power) <= 3:
        return f"{float(f'{value:.2g}'):g}"
    if digits == "1.0":
        factor = ""
    else:
        factor = rf"${float(digits):g}\cdot$"
    return factor + f"$10^{{{int(power)}}}$"


def _apart(x: np.ndarray, span: float) -> list[float]:
    """Omit labels that would touch; the largest size always has one."""
    sizes: list[float] = []
    for size in x[::-1]:
        if not sizes or np.log10(sizes[-1] / size) > 0.055 * len(f"{sizes[0]:g}") * span:
            sizes.append(float(size))
    return sizes


def _frame(axes: Axes, colour: str, xlabel: str) -> None:
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=7.5, labelcolor=GREY, pad=3)
    axes.set_xlabel(xlabel, fontsize=8, color=GREY, labelpad=1.5)
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=1.1)


def _title(axes: Axes, row: Row) -> None:
    name = _printable(row["module"] or "(the model)", MONO)
    if len(name) > LONGEST:
        name = f"{name[: LONGEST // 3]}…{name[-(LONGEST - LONGEST // 3 - 1) :]}"
    above = {"transform": axes.transAxes, "va": "bottom"}
    text(axes, 0.0, 1.19, name, fontsize=7.8, family=MONO, color=INK, weight="bold", **above)
    badge(axes, 0.015, 1.05, row["verdict"], fontsize=6.6, **above)
    text(axes, 1.0, 1.05, _numbers(row), fontsize=7.4, color=GREY, ha="right", **above)


def _numbers(row: Row) -> str:
    if not np.isfinite(row["exponent"]):
        return ""
    words = f"{row['exponent']:+z.2f} [{row['low']:+z.2f}, {row['high']:+z.2f}]"
    if np.isfinite(row["predicted"]):
        words += f" vs {row['predicted']:.3g}"
    return words.replace("-", "\N{MINUS SIGN}")


def _note(axes: Axes, rms: np.ndarray) -> None:
    """Write how many values a logarithmic axis cannot show."""
    counts = []
    zero = int((rms == 0).sum())
    if zero:
        counts.append(f"{zero} zero")
    bad = int((~np.isfinite(rms)).sum())
    if bad:
        counts.append(f"{bad} missing or not finite")
    if counts:
        words = f"{', '.join(counts)} of {rms.size} points"
        text(axes, 0.03, 0.05, words, fontsize=6.5, color=GREY, transform=axes.transAxes)
