"""S2 Part I: kernels G and tangent kernels Theta after every block, in theory and in Transformers.

S2 is "Effective Theory of Transformers at Initialization". Networks have sqrt(n) heads of sqrt(n)
channels, so that both grow with n. Corrections are then of order n^{-1/2}; the limit is the
intercept of a straight line in n^{-1/2}. The effects of few heads and of depth are measured
separately.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from orderone.gallery import exponent_table
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import Trace
from orderone.gallery.frames import Frame, Line
from orderone.gallery.judge import known
from orderone.gallery.s2.axes import axes, ticks
from orderone.gallery.s2.transformer_networks import (
    Settings,
    depths_of,
    heads_of,
    kernels_of,
    norm_of,
)

LEVEL = 0.999  # of each of about forty intervals
NORMAL = float(stats.norm.ppf((1 + LEVEL) / 2))
FINITE = 0.1  # relative correction of a kernel at the width of the deep networks, n^{-1/2}
# for a power p of the depth, the last step is 2^p times the one before; for a logarithm it is equal
SETTLED = 1.15
COLOURS = (
    "#4c78d8",
    "#d9534f",
    "#57a639",
    "#e8963a",
    "#9b59d0",
    "#38a3a5",
    "#7f7f7f",
    "#c05fb8",
    "#8c6d46",
    "#2fa84f",
    "#b8860b",
)
COLUMNS = {
    "kernels": ["width", "what", "where", "entry", "theory", "mean", "error"],
    "heads": ["heads", "width", "theory", "std", "error"],
    "depth": ["encoders", "what", "theory", "mean", "error"],
}


def parts(settings: Settings) -> Parts:
    return {
        "kernels": lambda: pd.DataFrame(kernels_of(settings), columns=COLUMNS["kernels"]),
        "heads": lambda: pd.DataFrame(heads_of(settings), columns=COLUMNS["heads"]),
        "depth": lambda: pd.DataFrame(depths_of(settings), columns=COLUMNS["depth"]),
        "norm": lambda: norm_of(settings),
    }


# --- judging --------------------------------------------------------------------------------------


def judge(records: Records) -> list[Finding]:
    frame: Frame = records["kernels"].assign(entry=records["kernels"].entry.astype(str))
    G = frame[frame.what == "G"]
    Theta = frame[(frame.what == "Theta")]
    whole = Theta[Theta["where"] == "all"]
    groups = Theta[Theta["where"] != "all"]
    return [
        _limits(G, "the kernels after the stem and all blocks are those of the recursion"),
        _limits(groups, "each group's part of the tangent kernel is as predicted"),
        _limits(
            whole,
            "the whole tangent kernel is as predicted, if the recursion includes queries and keys",
            "corrected",
            "S2.4",
        ),
        _flat(groups),
        *_norms(records["norm"].iloc[0]),
        *_fluctuations(records["heads"]),
        *_growth(records["depth"]),
    ]


def limits(frame: Frame) -> pd.DataFrame:
    """Return the limit of measured minus predicted at large n: the intercept of a line in n^{-1/2},
    by weighted least squares."""
    rows = []
    for key, lines in frame.groupby(["what", "where", "entry"], sort=False):
        weights = 1 / np.maximum(lines.error.to_numpy(), 1e-12) ** 2
        A = np.stack([np.ones(len(lines)), lines.width.to_numpy() ** -0.5], axis=1)
        if lines.width.nunique() > 1:
            covariance = np.linalg.inv(A.T @ (weights[:, None] * A))
        else:
            covariance = np.full((2, 2), np.nan)
        intercept, _ = covariance @ A.T @ (weights * (lines["mean"] - lines.theory).to_numpy())
        half = NORMAL * covariance[0, 0] ** 0.5
        rows.append(
            (*key, float(lines.theory.iloc[0]), intercept, intercept - half, intercept + half)
        )
    return pd.DataFrame(rows, columns=["what", "where", "entry", "theory", "left", "low", "high"])


def _limits(frame: Frame, claim: str, of: str = "paper", erratum: str = "") -> Finding:
    fits = limits(frame)
    if not known(fits.low, fits.high):
        return Finding(claim, None, "too few widths for a limit", of, erratum)
    inside = (fits.low <= 0) & (fits.high >= 0)
    wide = (fits.high - fits.low) > fits.theory.abs().clip(lower=0.1)
    worst = fits.loc[(fits.left / (fits.high - fits.low)).abs().idxmax()]
    numbers = (
        f"{inside.sum()} of {len(fits)} entries agree; farthest {worst['where']} {worst.entry}:"
        f" {worst.theory:.3f} "
    )
    numbers += f"{worst.left:+.3f} [{worst.low:+.3f}, {worst.high:+.3f}]"
    return Finding(
        claim, None if wide.any() and inside.all() else bool(inside.all()), numbers, of, erratum
    )


def _flat(frame: Frame) -> Finding:
    """Judge the exponent of the width in each group's part, as in a table of exponents."""
    verdicts: list[bool | None] = []
    numbers: list[str] = []
    for group, lines in frame[frame.entry == "11"].groupby("where", sort=False):
        x = np.log(lines.width.to_numpy())
        y = np.log(lines["mean"].to_numpy())
        w = (lines["mean"] / lines.error.clip(lower=1e-12)).to_numpy() ** 2
        centre = (w * x).sum() / w.sum()
        spread = (w * (x - centre) ** 2).sum()
        slope = float((w * (x - centre) * y).sum() / spread)
        half = float(NORMAL / spread**0.5)
        fit = pd.Series({"measured": slope, "low": slope - half, "high": slope + half})
        verdicts.append(exponent_table.holds(0, fit))
        numbers.append(f"{group} {exponent_table.interval(fit)}")
    claim = (
        "with the learning rates of (1.99)-(1.107) every group's part is of order one: no power of"
        " the width"
    )
    holds: bool | None = True
    if False in verdicts:
        holds = False
    elif None in verdicts:
        holds = None
    return Finding(claim, holds, ", ".join(numbers))


def _norms(row: Line) -> Iterator[Finding]:
    numbers = (
        f"E s² = {row.measured:.4f} ± {row.error:.4f}; inside {row.inside:.4f}, outside"
        f" {row.outside:.4f}"
    )
    close = {
        name: bool(abs(row.measured - row[name]) <= 4 * row.error + 2e-3)
        for name in ("inside", "outside")
    }
    if known([row.measured, row.error]):
        verdicts = close
    else:
        verdicts = dict.fromkeys(close)
    yield Finding(
        "epsilon is outside the root of a norm, as the scan of (1.36) can be read",
        verdicts["outside"],
        numbers,
        "ours",
    )
    yield Finding(
        "epsilon is inside the root of a norm", verdicts["inside"], numbers, "corrected", "S2.1"
    )


def _fluctuations(frame: Frame) -> Iterator[Finding]:
    """Judge whether the kernel's fluctuation shrinks with the width at a fixed number of heads."""
    few = frame[frame.heads == frame.heads.min()].sort_values("width")
    widest = frame[frame.width == frame.width.max()].sort_values("heads")
    last = few.iloc[-1]
    heads = int(few.heads.iloc[0])
    ratio = float(last["std"] / few["std"].iloc[0])
    expected = float((few.width.iloc[0] / last.width) ** 0.5)
    vanishes = abs(ratio - expected) < abs(ratio - 1)
    decided = known(frame["std"], frame.error)
    claim = "kernels are deterministic up to corrections that vanish with the width"
    stds = ", ".join(
        f"{r['std']:.3f} ± {r.error:.3f} at n = {r.width:g}" for _, r in few.iterrows()
    )
    yield Finding(claim, bool(vanishes) if decided else None, f"{heads} head: {stds}")
    # heads of n / H channels have a correction of order H / n
    slack = 4 * widest.error + widest.theory * widest.heads / widest.width
    right = ((widest["std"] - widest.theory).abs() <= slack).all() and not vanishes
    stds = ", ".join(
        f"H = {r.heads:g}: {r['std']:.3f} ± {r.error:.3f} ({r.theory:.3f})"
        for _, r in widest.iterrows()
    )
    claim = "kernels fluctuate by order H^(-1/2) at any width, as predicted"
    holds = bool(right) if decided else None
    yield Finding(claim, holds, f"at n = {widest.width.iloc[0]:g}, {stds}", "corrected", "S2.5")


NO_GROWTH = "tangent kernels stay of order one as the depth grows"


def _growth(frame: Frame) -> Iterator[Finding]:
    """Judge the growth with depth: as claimed, and as corrected."""
    Theta = frame[frame.what == "Theta"].sort_values("encoders")
    G = frame[frame.what == "G"].sort_values("encoders")
    measured = Theta.dropna()
    if len(measured) < 2:
        yield Finding(NO_GROWTH, None, "too few depths were measured")
        return
    yield _no_growth(measured)
    yield _logarithm(Theta, G, measured)


def _no_growth(measured: Frame) -> Finding:
    means = ", ".join(
        f"{r['mean']:.2f} ± {r.error:.2f} ({r.theory:.2f}) at {r.encoders:g}"
        for _, r in measured.iterrows()
    )
    rise = measured["mean"].iloc[-1] - measured["mean"].iloc[0]
    error = np.hypot(measured.error.iloc[0], measured.error.iloc[-1])
    if rise > NORMAL * error:
        rises = True
    elif rise > 0:
        rises = None
    else:
        rises = False
    numbers = f"networks {means} encoders, predictions in brackets"
    return Finding(NO_GROWTH, None if rises is None else not rises, numbers)


def _logarithm(Theta: Frame, G: Frame, measured: Frame) -> Finding:
    """Judge the growth of the prediction, and whether networks agree with the prediction."""
    steps = np.diff(Theta.theory) / np.diff(np.log2(Theta.encoders))  # per doubling
    rates = (G.theory / G.encoders).to_numpy()
    close = (
        measured["mean"] - measured.theory
    ).abs() <= NORMAL * measured.error + FINITE * measured.theory
    holds = (
        0 < steps[-1] < SETTLED * steps[-2]
        and rates[-2] / SETTLED < rates[-1] < rates[-2] * SETTLED
    )
    numbers = (
        f"predicted per doubling {steps[-2]:+.2f}, then {steps[-1]:+.2f}; G per encoder"
        f" {rates[-2]:.3f}, {rates[-1]:.3f}"
    )
    claim = (
        "the tangent kernel grows like the logarithm of depth, and G in proportion to depth, in"
        " theory and in networks"
    )
    return Finding(claim, bool(holds and close.all()), numbers, "corrected", "S2.6")


# --- drawing --------------------------------------------------------------------------------------


def draw(records: Records) -> list[Picture]:
    frame: Frame = records["kernels"].assign(entry=records["kernels"].entry.astype(str))
    diagonal = frame[frame.entry == "11"]
    G = diagonal[diagonal.what == "G"]
    Theta = diagonal[diagonal.what == "Theta"]
    return [
        _against_width(G, "Kernels G after the stem and each block", "G of a token with itself"),
        _against_width(
            Theta, "Parts of the tangent kernel of the outputs", "Theta of a token with itself"
        ),
        _few_heads(records["heads"]),
        _by_depth(records["depth"]),
    ]


def _against_width(frame: Frame, title: str, axis: str) -> Picture:
    data = []
    ends = [float(frame.width.min()), float(frame.width.max())]
    for colour, (where, lines) in zip(COLOURS, frame.groupby("where", sort=False), strict=False):
        line = {"color": colour, "width": 2}
        value = float(lines.theory.iloc[0])
        data.append(_trace("lines", ends, [value, value], str(where), line=line, legendgroup=where))
        data.append(_dots(lines.width, lines["mean"], lines.error, colour, legendgroup=where))
    alt = (
        f"{axis} at widths {ends[0]:g} to {ends[1]:g}: means of networks with errors, on lines of"
        " the theory."
    )
    return Picture(
        title,
        {
            "data": data,
            "layout": axes("width n", axis, xaxis=ticks(frame.width), yaxis={"type": "log"}),
        },
        alt,
    )


def _few_heads(frame: Frame) -> Picture:
    data = []
    ends = [float(frame.width.min()), float(frame.width.max())]
    for colour, (heads, lines) in zip(COLOURS, frame.groupby("heads"), strict=False):
        value = float(lines.theory.iloc[0])
        name = f"H = {heads:g}"
        data.append(
            _trace(
                "lines",
                ends,
                [value, value],
                name,
                line={"color": colour, "width": 2},
                legendgroup=name,
            )
        )
        data.append(_dots(lines.width, lines["std"], lines.error, colour, legendgroup=name))
    alt = (
        "The standard deviation of a kernel between networks: at a fixed number of heads it does"
        " not shrink as the width grows."
    )
    layout = axes(
        "width n",
        "standard deviation of G₁₂",
        xaxis=ticks(frame.width),
        yaxis={"rangemode": "tozero"},
    )
    return Picture(
        "Few heads: kernels that fluctuate at any width", {"data": data, "layout": layout}, alt
    )


def _by_depth(frame: Frame) -> Picture:
    lines = frame[frame.what == "Theta"].sort_values("encoders")
    known = lines.dropna()
    data = [
        _trace(
            "lines+markers",
            lines.encoders.to_list(),
            lines.theory.to_list(),
            "theory",
            line={"color": COLOURS[0]},
        ),
        _dots(
            known.encoders, known["mean"], known.error, COLOURS[1], name="networks", showlegend=True
        ),
    ]
    ends = f"{lines.theory.iloc[0]:.2f} to {lines.theory.iloc[-1]:.2f}"
    alt = f"The tangent kernel grows from {ends}, like the logarithm of depth."
    layout = axes(
        "encoders",
        "Theta of the outputs",
        xaxis=ticks(lines.encoders),
        yaxis={"rangemode": "tozero"},
    )
    return Picture("Depth: the tangent kernel grows", {"data": data, "layout": layout}, alt)


def _trace(mode: str, x: list, y: list, name: str, **more: object) -> Trace:
    return {"type": "scatter", "mode": mode, "x": x, "y": y, "name": name, **more}


def _dots(x: Line, y: Line, error: Line, colour: str, name: str = "", **more: object) -> Trace:
    bars = {"type": "data", "array": (2 * error).to_list(), "color": colour}
    look = {"showlegend": False, "marker": {"color": colour, "size": 8}, "error_y": bars} | more
    return _trace("markers", x.to_list(), y.to_list(), name, **look)


SMALL = Settings(
    widths=(64, 144, 256),
    seeds=100,
    head_widths=(64, 256, 512),
    heads=(1, 4, 16),
    head_seeds=200,
    depths=(1, 2, 4, 8, 16, 32, 64),
    measured_depths=(1, 4, 16),
    depth_width=144,
    depth_seeds=12,
)
PAPER = Settings(
    widths=(64, 144, 256, 576, 1024),
    seeds=400,
    head_widths=(64, 256, 1024, 4096),
    heads=(1, 4, 16, 64),
    head_seeds=2000,
    depths=(1, 2, 4, 8, 16, 32, 64),
    measured_depths=(1, 4, 16, 64),
    depth_width=256,
    depth_seeds=60,
)

EXPERIMENT = Experiment(
    name="s2-kernels",
    title="Kernels of Transformers, against networks",
    place="sections I.1 and I.3",
    claim=(
        "At initialization, the signals of a Transformer and its tangent kernel follow recursions"
        " up to corrections of order 1/n, and stay of order one as width and depth grow."
    ),
    method=(
        "Vision Transformers of two encoders (no training) over widths and seeds with sqrt(n)"
        " heads; G from their residual streams and Theta from automatic differentiation; the limit"
        " of large n with 99.9 % intervals. One block of attention with few heads. Deeper networks."
        " Error bars are two standard errors."
    ),
    scales={"small": SMALL, "paper": PAPER},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S2.1", "S2.4", "S2.5", "S2.6"),
)
