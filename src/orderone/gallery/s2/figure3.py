"""S2 Figure 3: the learning rate of an encoder-decoder for span denoising, under two strategies.

For neural-tangent, the paper shifts its search by (lr, wd) -> (n^{3/2} lr, n^{-3/2} wd). `rate` is
lr before this shift.
"""

from collections.abc import Sequence
from math import inf, log2

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import Layout
from orderone.gallery.frames import Frame, Line
from orderone.gallery.paper_scale import at_scale
from orderone.gallery.s2.axes import axes
from orderone.gallery.s2.compare import difference
from orderone.gallery.s2.denoising_strategies import (
    COMPARED,
    GPU,
    PAPER,
    SMALL,
    Settings,
    best_rate,
    search,
)

WARM = ("#d9534f", "#e8963a")
COLD = ("#4c78d8", "#38a3a5")  # WARM above and COLD below the best rate, the nearest first
BEST = "#7f7f7f"
OPACITIES = (1.0, 0.6, 0.4)


def parts(settings: Settings) -> Parts:
    return {strategy: lambda strategy=strategy: search(settings, strategy) for strategy in COMPARED}


def judge(records: Records) -> list[Finding]:
    rates = {name: best_rate(records[name]) for name in COMPARED}
    width = int(records["standard"].width.iloc[0])
    ends: list[str] = []
    for name in COMPARED:
        if rates[name] in (records[name].rate.min(), records[name].rate.max()):
            ends.append(name)
    numbers = (
        f"best rates {rates['standard']:.3g} and {rates['neural-tangent']:.3g} n^(3/2), n = {width}"
    )
    agree = None
    same = rates["neural-tangent"] == rates["standard"]
    if ends:
        numbers += f"; at an end of the grid: {', '.join(ends)}"
    elif same or _apart(records):
        agree = same
    claim = "the best learning rates agree when neural-tangent's is divided by n^(3/2)"
    findings = [Finding(claim, agree, numbers)]
    for name in COMPARED:
        findings.append(_above(name, records[name], rates[name]))
    findings.append(_below(records, rates))
    updates = float(max(records[name].step.max() for name in COMPARED))
    return at_scale(findings, updates, PAPER.training.steps, "updates")


def _apart(records: Records) -> bool:
    """Return whether no rate is good for both strategies: at each, one is clearly worse than at its
    best rate."""
    tried = set(records["standard"].rate) & set(records["neural-tangent"].rate)
    unsuitable: set[float] = set()
    for name in COMPARED:
        unsuitable |= {rate for rate in tried if _worse(records[name], rate)}
    return unsuitable == tried


def _worse(frame: Frame, rate: float) -> bool:
    values = lowest(frame, rate)
    best = lowest(frame, best_rate(frame))
    return inf in values or difference(values, best).positive is True


def lowest(frame: Frame, rate: float) -> list[float]:
    """Return the lowest held-out loss of every seed; infinite if it was never finite."""
    losses = frame[np.isclose(frame.rate, rate)].groupby("seed").loss.min()
    return [float(value) for value in losses.fillna(inf)]


def _above(name: str, frame: Frame, rate: float) -> Finding:
    claim = f"{name}: training diverges at twice the best rate"
    if not (values := lowest(frame, 2 * rate)):
        return Finding(claim, None, "not tried")
    if inf in lowest(frame, rate):
        return Finding(claim, None, "some seeds diverge at every rate")
    broken = values.count(inf)
    numbers = f"{broken} of {len(values)} seeds diverge"
    if not broken:
        numbers += f"; lowest held-out loss {difference(values, lowest(frame, rate))}"
        numbers += "; the paper used float16, whose range is smaller than that of these runs"
    # what a smaller range would have broken is not known
    holds = True if broken == len(values) else None
    return Finding(claim, holds, numbers)


def _below(records: Records, rates: dict[str, float]) -> Finding:
    """Compare how much worse half the best rate is, for each seed."""
    claim = "half the best rate costs standard more than neural-tangent"
    cost = {name: _cost(records[name], rates[name]) for name in COMPARED}
    if not all(cost.values()):
        return Finding(claim, None, "half the best rate was not tried")
    more = difference(cost["standard"], cost["neural-tangent"])
    means = ", ".join(f"{name} {np.mean(values):+.3f}" for name, values in cost.items())
    return Finding(claim, more.positive, f"{means}; difference {more}")


def _cost(frame: Frame, rate: float) -> Sequence[float]:
    pairs = zip(lowest(frame, rate / 2), lowest(frame, rate), strict=False)
    return [low - best for low, best in pairs]


def draw(records: Records) -> list[Picture]:
    """Draw both strategies on the same axes, which fit the best rates and their neighbours."""
    near: Frame = pd.concat([_near(records[name]) for name in COMPARED])
    return [_panel(name, records[name], near) for name in COMPARED]


def _near(frame: Frame) -> Frame:
    return frame[np.abs(np.log2(frame.rate / best_rate(frame))) < 1.5]


def _panel(strategy: str, frame: Frame, near: Frame) -> Picture:
    best = best_rate(frame)
    data = []
    tried = sorted(frame.rate.unique(), reverse=True)
    for rate in tried:
        runs: Frame = frame[frame.rate == rate]
        values = [value for value in lowest(frame, rate) if value < inf]
        label = "diverges"
        if values:
            label = f"{min(values):.3f}"
        line = {"color": _colour(rate, best), "width": 1.8}
        if rate == best:
            line["width"] = 3
        for number, (_, run) in enumerate(runs.groupby("seed")):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": run.step.to_list(),
                    "y": _plain(run.loss),
                    "name": f"lr = {run.lr.iloc[0]:.4g} [{label}]",
                    "legendgroup": str(rate),
                    "showlegend": number == 0,
                    "line": line,
                    "opacity": OPACITIES[min(number, len(OPACITIES) - 1)],
                }
            )
    title = f"{strategy}: wd = {frame.wd.iloc[0]:.3g}"
    alt = (
        f"Held-out loss over updates for {len(tried)} learning rates of {strategy}; best before the"
        f" shift: {best:.3g}."
    )
    caption = (
        "In the legend: the lowest loss during training. The axis fits the best rate and its"
        " neighbours."
    )
    return Picture(title, {"data": data, "layout": layout(near)}, alt, caption)


def layout(frame: Frame) -> Layout:
    """Return axes from the lowest loss to the 90 % quantile, since the first losses are far
    above."""
    finite = frame.loss[np.isfinite(frame.loss)]
    low = 0.0
    high = 1.0
    if len(finite):
        low = float(finite.min())
        high = float(finite.quantile(0.9))
    margin = 0.08 * (high - low) + 1e-3
    return axes("update", "validation loss", yaxis={"range": [low - margin, high + margin]})


def _plain(losses: Line) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in losses]


def _colour(rate: float, best: float) -> str:
    octaves = round(log2(rate / best))
    if octaves == 0:
        return BEST
    shade = min(abs(octaves), 2) - 1
    if octaves > 0:
        return WARM[shade]
    return COLD[shade]


EXPERIMENT = Experiment(
    name="s2-figure3",
    title="Two strategies for span denoising: the search",
    place="Figure 3 and section II.2.E",
    claim=(
        "After the shift (lr, wd) -> (n^(3/2) lr, n^(-3/2) wd) the best learning rates of both"
        " strategies agree. Twice the best rate overflows. Half the best rate costs standard more"
        " than neural-tangent."
    ),
    method=(
        "Encoder-decoders with tied words, clipped AdamW, warm-up and linear decay, several seeds;"
        " lowest held-out loss. Scale small: bytes of Python code; gpu: Gutenberg and State of the"
        " Union in GPT-2's tokens, bfloat16; paper: BART-large for 200,000 updates. Divergence is a"
        " loss that is not finite; the paper trained in half precision, whose range is smaller."
    ),
    scales={"small": SMALL, "gpu": GPU, "paper": PAPER},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S2.8", "S2.9"),
)
