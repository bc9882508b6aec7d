"""A transfer study as a page: loss against learning rate, one panel a rule and one line a size; how
the best rate moves; the tables; and the settings for a larger model."""

import math
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from orderone.report.figures import write_figures
from orderone.sweeping.optimum import INSIDE
from orderone.sweeping.transfer_text import (
    drift_table,
    headline,
    optima_table,
    predicted,
    said,
    slope,
)

RULES = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#7a4fb5",
    "#a6761d",
    "#5c6570",
)  # one colour a rule, told apart by the colour-blind
BEST = {"symbol": "star", "size": 13, "line": {"color": "#ffffff", "width": 1}}


def write_transfer(
    t: Any, path: str | PathLike[str], target: Any = None, title: str = "Transfer"
) -> Path:
    """Writes the page, and says where. `target` is what `t.target(...)` gave; by default the next
    doubling's settings."""
    heading = f"{title}: " + "; ".join(f"{d.rule} {said(d.verdict)}" for d in t.drift.values())
    notes = [
        headline(t),
        *(f"{d.rule}: {d.why}" + (f"; {d.remedy}" if d.remedy else "") for d in t.drift.values()),
    ]
    told = next_size(t) if target is None else target
    code = "" if told is None else f"# {told.why}\n# {told.outlook}\n{told.snippet}"
    return write_figures(
        path,
        heading,
        [_losses(t), _drift(t)],
        [*notes, *t.notes],
        [optima_table(t), drift_table(t)],
        code,
    )


def next_size(t: Any) -> Any:
    """Settings for twice the largest size; None if no optimum is known."""
    largest = max(curve.size for curves in t.curves.values() for curve in curves)
    try:
        return t.target(**{t.axis: 2 * largest})
    except ValueError:
        return None


def shades(count: int) -> list[str]:
    """From teal to violet as sizes grow: tones that show on white and on black."""
    shares = [k / max(1, count - 1) for k in range(count)]
    return [f"hsl({175 + 95 * share:.0f}, 55%, {46 + 8 * share:.0f}%)" for share in shares]


def ceiling(t: Any) -> float:
    """Losses above this are drawn at the top: far from the optimum they only flatten what is
    near."""
    finite = np.concatenate(
        [c.mean[np.isfinite(c.mean)] for curves in t.curves.values() for c in curves]
    )
    if finite.size:
        return float(finite.min() + 2.5 * (np.median(finite) - finite.min()) + 1e-9)
    return 1.0


def floor(t: Any) -> float:
    lowest = [
        c.losses[np.isfinite(c.losses)].min(initial=math.inf)
        for curves in t.curves.values()
        for c in curves
    ]
    return min(lowest) if np.isfinite(min(lowest)) else 0.0


def sizes(t: Any) -> list[int]:
    return sorted({curve.size for curves in t.curves.values() for curve in curves})


# --- loss against learning rate -------------------------------------------------------------------


def _losses(t: Any) -> dict[str, Any]:
    colour = dict(zip(sizes(t), shades(len(sizes(t))), strict=True))
    top = ceiling(t)
    bottom = floor(t)
    data = []
    layout = {
        "title": {
            "text": (
                "Loss against learning rate<br><sup>crosses at the top: diverged, or above</sup>"
            )
        },
        "height": 460,
        "annotations": [],
    }
    width = 1 / len(t.rules)
    for k, rule in enumerate(t.rules):
        axis = "" if k == 0 else str(k + 1)
        for curve, best in zip(t.curves[rule], t.optima[rule], strict=True):
            data += _curve(t, curve, best, colour[curve.size], axis, k == 0, top)
        domain = [k * width + (0.03 if k else 0), (k + 1) * width - 0.01]
        layout[f"xaxis{axis}"] = {
            "type": "log",
            "exponentformat": "power",
            "title": {"text": "lr"},
            "domain": domain,
            "anchor": f"y{axis}",
        }
        room = 0.08 * (top - bottom)
        layout[f"yaxis{axis}"] = {
            "range": [bottom - room, top + room],
            "anchor": f"x{axis}",
            "showticklabels": k == 0,
        }
        place = {
            "x": sum(domain) / 2,
            "y": 1.0,
            "xref": "paper",
            "yref": "paper",
            "yanchor": "bottom",
            "showarrow": False,
        }
        layout["annotations"].append(place | {"text": f"<b>{_escaped(rule)}</b>"})
    layout["yaxis"]["title"] = {"text": "loss"}
    return {"data": data, "layout": layout}


def _curve(
    t: Any, curve: Any, best: Any, colour: str, axis: str, first: bool, top: float
) -> list[dict[str, Any]]:
    rates = 2.0**curve.x
    mean = curve.mean
    name = f"{t.axis} {curve.size}"
    group = {"legendgroup": str(curve.size), "xaxis": f"x{axis}", "yaxis": f"y{axis}"}
    words = [f"{value:.4g}" if np.isfinite(value) else "diverged" for value in mean]
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": rates,
        "y": np.minimum(mean, top),
        "name": name,
    } | group
    line |= {
        "line": {"color": colour, "width": 2},
        "marker": _marker(mean > top, colour),
        "showlegend": first,
    }
    line |= {
        "text": words,
        "hovertemplate": f"{name}<br>lr %{{x:.3g}}<br>loss %{{text}}<extra></extra>",
    }
    if len(curve.losses) > 1:
        line["error_y"] = _spread(curve, top) | {"color": colour}
    if best.beyond != INSIDE:
        return [line]
    star = {
        "type": "scatter",
        "mode": "markers",
        "x": [best.lr],
        "y": [best.loss],
        "showlegend": False,
    } | group
    star |= {
        "marker": BEST | {"color": colour},
        "hovertemplate": f"{name}<br>best lr %{{x:.3g}}<extra></extra>",
    }
    return [
        line,
        star | ({} if math.isinf(best.low) else {"error_x": _interval(best) | {"color": colour}}),
    ]


def _marker(cut: np.ndarray, colour: str) -> dict[str, Any]:
    """Crosses at the top edge: diverged, or off the picture."""
    return {
        "size": np.where(cut, 8, 5),
        "color": colour,
        "symbol": np.where(cut, "x-thin-open", "circle"),
    }


def _spread(curve: Any, top: float) -> dict[str, Any]:
    """From the best seed to the worst."""
    mean = np.minimum(curve.mean, top)
    seen = np.minimum(curve.losses, top)
    ends = {
        "array": np.maximum(seen.max(0) - mean, 0),
        "arrayminus": np.maximum(mean - seen.min(0), 0),
    }
    return {"type": "data", "symmetric": False, "thickness": 0.8, "width": 2} | ends


def _interval(best: Any) -> dict[str, Any]:
    above = [2.0**best.high - best.lr]
    below = [best.lr - 2.0**best.low]
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "thickness": 2,
        "width": 5,
    }


# --- drift ----------------------------------------------------------------------------------------


def _drift(t: Any) -> dict[str, Any]:
    data = [
        trace
        for rule, colour in zip(t.rules, RULES * len(t.rules), strict=False)
        for trace in _of_rule(t, rule, colour)
    ]
    title = f"Best learning rate against {t.axis}"
    told = "dashed: theory, from full to the worst alignment"
    axes = {"xaxis": {"type": "log", "title": {"text": t.axis}, "tickvals": sizes(t)}}
    axes |= {"yaxis": {"type": "log", "exponentformat": "power", "title": {"text": "best lr"}}}
    return {"data": data, "layout": {"title": {"text": f"{title}<br><sup>{told}</sup>"}, **axes}}


def _of_rule(t: Any, rule: str, colour: str) -> list[dict[str, Any]]:
    known = [o for o in t.optima[rule] if o.beyond == INSIDE]
    d = t.drift[rule]
    if not known:
        return []
    name = f"{rule}: {slope(d)}, predicted {predicted(d)}"
    group = {"legendgroup": rule, "hoverinfo": "skip"}
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [o.size for o in known],
        "y": [o.lr for o in known],
    }
    points |= {"name": name, "legendgroup": rule, "marker": {"color": colour, "size": 9}}
    points |= {
        "hovertemplate": f"{_escaped(rule)}<br>{t.axis} %{{x}}<br>best lr %{{y:.3g}}<extra></extra>"
    }
    if not math.isinf(known[0].low):
        ends = {
            "array": [2.0**o.high - o.lr for o in known],
            "arrayminus": [o.lr - 2.0**o.low for o in known],
        }
        points["error_y"] = {
            "type": "data",
            "symmetric": False,
            "color": colour,
            "thickness": 2,
            "width": 5,
        } | ends
    lines = [
        (d.slope, {"color": colour, "width": 2}),
        *((p, {"color": colour, "width": 1, "dash": "dash"}) for p in set(d.predicted)),
    ]
    drawn = [
        {
            "type": "scatter",
            "mode": "lines",
            "line": style,
            "showlegend": False,
            **line_through(known, d.slope, power),
            **group,
        }
        for power, style in lines
        if not math.isnan(power)
    ]
    return [points, *drawn]


def line_through(known: Any, fitted: float, power: float) -> dict[str, Any]:
    """A power law that starts where the fitted one does."""
    doublings = np.log2([o.size for o in known])
    x = np.array([o.x for o in known])
    start = x.mean() + (0.0 if math.isnan(fitted) else fitted) * (doublings[0] - doublings.mean())
    return {"x": [o.size for o in known], "y": 2.0 ** (start + power * (doublings - doublings[0]))}


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;")
