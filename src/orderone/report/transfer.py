"""A transfer study as a page: loss against learning rate (one panel per rule, one line per size),
the best learning rate and the loss against size with its forecast, normalized loss curves, the
tables, and the settings for a larger model."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orderone.core.colours import rule_colours
from orderone.core.errors import InputError
from orderone.report.beyond_grid import grid_ends
from orderone.report.figures import write_figures
from orderone.report.inputs import Figure, FilePath, Layout, TargetInput, Trace, TransferInput
from orderone.sweeping.forecast import Forecast
from orderone.sweeping.optimum import INSIDE, Curve, Optimum
from orderone.sweeping.transfer_text import (
    collapse_sentences,
    drift_table,
    headline,
    optima_table,
    outside_note,
    predicted,
    quality_table,
    slope,
    verdicts,
)

BEYOND = 2.0  # octaves that the axis of optima shows at most beyond them
MARGIN = 0.2  # octaves between the data and the ends of that axis
# digits of round numbers, from coarse to fine
LABELS = ((1, 2, 5), range(1, 10), [digit / 10 for digit in range(10, 100)])
FARTHEST = 4  # the forecast is drawn up to so many times the largest size
BEST: Trace = {"symbol": "star", "size": 13, "line": {"color": "#ffffff", "width": 1}}


def write_transfer(
    t: TransferInput, path: FilePath, target: TargetInput = None, title: str = "Transfer"
) -> Path:
    """Write the page of a transfer study; return its path.

    `target` is the result of `t.target(...)`; by default the settings for twice the largest size.
    """
    notes = [headline(t)]
    for drift in t.drift.values():
        note = f"{drift.rule}: {drift.why}"
        if drift.remedy:
            note += f"; {drift.remedy}"
        notes.append(note)
    if target is None:
        target = next_size(t)
    code = ""
    if target is not None:
        code = f"# {target.why}\n# {target.outlook}\n{target.snippet}"  # with its cautions
    return write_figures(
        path,
        f"{title}: {verdicts(t)}",
        [_losses(t), _drift(t), *_forecast(t), *_collapse(t)],
        [*notes, *t.notes, *filter(None, [outside_note(t)]), *collapse_sentences(t)],
        [optima_table(t), drift_table(t), quality_table(t)],
        code,
    )


def next_size(t: TransferInput) -> TargetInput:
    """Return settings for twice the largest size; None if the study has no optimum."""
    doubled: dict[str, Any] = {t.axis: 2 * max(sizes(t))}
    try:
        return t.target(**doubled)
    except ValueError:
        return None


def shades(count: int) -> list[str]:
    """Return colours from teal to violet for growing sizes, visible on white and on black."""
    colours: list[str] = []
    for k in range(count):
        share = k / max(1, count - 1)
        colours.append(f"hsl({175 + 95 * share:.0f}, 55%, {46 + 8 * share:.0f}%)")
    return colours


def ceiling(t: TransferInput) -> float:
    """Return the loss above which points are drawn at the top edge.

    A larger range of losses would flatten the curves near the optimum.
    """
    means = np.concatenate([curve.mean for curve in all_curves(t)])
    finite = means[np.isfinite(means)]
    if not finite.size:
        return 1.0
    return float(finite.min() + 2.5 * (np.median(finite) - finite.min()) + 1e-9)


def floor(t: TransferInput) -> float:
    """Return the lowest loss of any seed; 0 if there is none."""
    lowest = math.inf
    for curve in all_curves(t):
        finite = curve.losses[np.isfinite(curve.losses)]
        lowest = min(lowest, finite.min(initial=math.inf))
    if np.isfinite(lowest):
        return lowest
    return 0.0


def run_range(t: TransferInput) -> tuple[float, float]:
    """Return the learning rates that the axis of losses shows: those that were run."""
    x = np.concatenate([curve.x for curve in all_curves(t)])
    margin = 0.03 * float(np.ptp(x)) + 0.1
    return 2.0 ** (float(x.min()) - margin), 2.0 ** (float(x.max()) + margin)


def sizes(t: TransferInput) -> list[int]:
    """List the sizes of the study, each once."""
    return sorted({curve.size for curve in all_curves(t)})


def all_curves(t: TransferInput) -> list[Curve]:
    """List the curves of all rules."""
    curves: list[Curve] = []
    for curves_of_rule in t.curves.values():
        curves += curves_of_rule
    return curves


# --- loss against learning rate -------------------------------------------------------------------


def _losses(t: TransferInput) -> Figure:
    study_sizes = sizes(t)
    colours = dict(zip(study_sizes, shades(len(study_sizes)), strict=True))
    top = ceiling(t)
    bottom = floor(t)
    room = 0.08 * (top - bottom)
    width = 1 / len(t.rules)
    title = "Loss against learning rate<br><sup>crosses at the top: larger loss, or diverged</sup>"
    data: list[Trace] = []
    annotations: list[Layout] = []
    layout: Layout = {"title": {"text": title}, "height": 460, "annotations": annotations}
    for k, rule in enumerate(t.rules):
        if k == 0:
            axis = ""
        else:
            axis = str(k + 1)
        for curve, best in zip(t.curves[rule], t.optima[rule], strict=True):
            name = f"{t.axis} {curve.size}"
            colour = colours[curve.size]
            data.append(_curve(curve, name, colour, axis, top, in_legend=k == 0))
            if best.beyond == INSIDE:
                data.append(_star(best, name, colour, axis))
        left = k * width
        if k > 0:
            left += 0.03  # room between two panels
        domain = [left, (k + 1) * width - 0.01]
        layout[f"xaxis{axis}"] = _rate_axis(t) | {"domain": domain, "anchor": f"y{axis}"}
        layout[f"yaxis{axis}"] = {
            "range": [bottom - room, top + room],
            "anchor": f"x{axis}",
            "showticklabels": k == 0,
        }
        annotations.append(_above(f"<b>{_escaped(rule)}</b>", sum(domain) / 2))
    layout["yaxis"]["title"] = {"text": "loss"}
    return {"data": data, "layout": layout}


def _rate_axis(t: TransferInput) -> Layout:
    return {
        "type": "log",
        "range": np.log10(run_range(t)).tolist(),
        "exponentformat": "power",
        "title": {"text": _escaped(t.setting)},
    }


def _above(text: str, x: float) -> Layout:
    """Return a heading above the panel whose middle is at `x`."""
    return {
        "x": x,
        "y": 1.0,
        "xref": "paper",
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "text": text,
    }


def _curve(
    curve: Curve, name: str, colour: str, axis: str, top: float, *, in_legend: bool
) -> Trace:
    mean = curve.mean
    cut = mean > top
    words = []
    for loss in mean:
        words.append(f"{loss:.4g}" if np.isfinite(loss) else "diverged")
    # crosses at the top edge: loss above the axis, or diverged
    marker = {
        "size": np.where(cut, 8, 5),
        "color": colour,
        "symbol": np.where(cut, "x-thin-open", "circle"),
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": 2.0**curve.x,
        "y": np.minimum(mean, top),
        "name": name,
        "legendgroup": str(curve.size),
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "line": {"color": colour, "width": 2},
        "marker": marker,
        "showlegend": in_legend,
        "text": words,
        "hovertemplate": f"{name}<br>lr %{{x:.3g}}<br>loss %{{text}}<extra></extra>",
    }
    if len(curve.losses) > 1:
        line["error_y"] = _spread(curve, top) | {"color": colour}
    return line


def _star(best: Optimum, name: str, colour: str, axis: str) -> Trace:
    star = {
        "type": "scatter",
        "mode": "markers",
        "x": [best.lr],
        "y": [best.loss],
        "showlegend": False,
        "legendgroup": str(best.size),
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "marker": BEST | {"color": colour},
        "hovertemplate": f"{name}<br>best lr %{{x:.3g}}<extra></extra>",
    }
    if not math.isinf(best.low):
        star["error_x"] = _intervals([best]) | {"color": colour}
    return star


def _spread(curve: Curve, top: float) -> Trace:
    """Return error bars from the best to the worst seed."""
    mean = np.minimum(curve.mean, top)
    losses = np.minimum(curve.losses, top)
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 0.8,
        "width": 2,
        "array": np.maximum(losses.max(0) - mean, 0),
        "arrayminus": np.maximum(mean - losses.min(0), 0),
    }


def _intervals(optima: Sequence[Optimum]) -> Trace:
    """Return error bars over the intervals of the best learning rates."""
    above: list[float] = []
    below: list[float] = []
    for optimum in optima:
        above.append(2.0**optimum.high - optimum.lr)
        below.append(optimum.lr - 2.0**optimum.low)
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "thickness": 2,
        "width": 5,
    }


# --- drift ----------------------------------------------------------------------------------------


def _drift(t: TransferInput) -> Figure:
    data: list[Trace] = []
    for rule, colour in rule_colours(t.rules).items():
        data += _drift_of_rule(t, rule, colour)
    title = f"Best learning rate against {t.axis}"
    subtitle = (
        f"legend: octaves per doubling of the {t.axis}; dashed: predicted slopes, for full and for"
        " worst-case alignment; triangles: outside of the grid"
    )
    layout = {
        "title": {"text": f"{title}<br><sup>{subtitle}</sup>"},
        "xaxis": {"type": "log", "title": {"text": t.axis}, "tickvals": sizes(t)},
        "yaxis": {
            "type": "log",
            "title": {"text": f"best {_escaped(t.setting)}"},
        },
    }
    if known := rates_range(t):
        labels = round_rates(*known)
        layout["yaxis"]["range"] = np.log10(known).tolist()
        layout["yaxis"]["tickvals"] = labels
        layout["yaxis"]["ticktext"] = [f"{rate:.3g}" for rate in labels]
    return {"data": data, "layout": layout}


def rates_range(t: TransferInput) -> tuple[float, float] | None:
    """Return the learning rates that the axis of optima shows, or None if none is known.

    The axis contains the optima, their intervals and the predicted lines, but at most `BEYOND`
    octaves beyond the optima: these stay distinguishable beside a very long interval. An optimum
    outside of the grid is shown at the end of the grid.
    """
    known: list[float] = []
    others: list[float] = []
    for rule, optima in t.optima.items():
        inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
        known += [end.x for end in grid_ends(optima)]
        for optimum in inside:
            known.append(optimum.x)
            others += [optimum.low, optimum.high]
        drift = t.drift[rule]
        for power in drift.predicted if inside else ():
            others += np.log2(line_through(inside, drift.slope, power)["y"]).tolist()
    if not known:
        return None
    others = [x for x in others if math.isfinite(x)]
    lowest = max(min([*known, *others]), min(known) - BEYOND)
    highest = min(max([*known, *others]), max(known) + BEYOND)
    return 2.0 ** (lowest - MARGIN), 2.0 ** (highest + MARGIN)


def round_rates(low: float, high: float) -> list[float]:
    """Return round numbers in a range, for the labels of its axis: two or more where possible."""
    rates: list[float] = []
    for digits in LABELS:
        rates = []
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
            rates += [float(f"{digit}e{power}") for digit in digits]
        rates = [rate for rate in rates if low <= rate <= high]
        if len(rates) > 1:
            break
    return rates


def _drift_of_rule(t: TransferInput, rule: str, colour: str) -> list[Trace]:
    """Return the best learning rates as points, and lines of the fitted and predicted slopes."""
    outside = _outside(t, rule, colour)
    known = [optimum for optimum in t.optima[rule] if optimum.beyond == INSIDE]
    if not known:
        return outside
    drift = t.drift[rule]
    best = f"best {_escaped(t.setting)}"
    hover = f"{_escaped(rule)}<br>{t.axis} %{{x}}<br>{best} %{{y:.3g}}<extra></extra>"
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": [optimum.size for optimum in known],
        "y": [optimum.lr for optimum in known],
        "name": f"{rule}: {slope(drift)}, predicted {predicted(drift)}",
        "legendgroup": rule,
        "marker": {"color": colour, "size": 9},
        "hovertemplate": hover,
    }
    if not math.isinf(known[0].low):
        points["error_y"] = _intervals(known) | {"color": colour}
    traces = [points, *outside]
    lines = [(drift.slope, {"color": colour, "width": 2})]
    for power in set(drift.predicted):
        lines.append((power, {"color": colour, "width": 1, "dash": "dash"}))
    for power, style in lines:
        if math.isnan(power):
            continue
        trace = {
            "type": "scatter",
            "mode": "lines",
            "line": style,
            "showlegend": False,
            **line_through(known, drift.slope, power),
            "legendgroup": rule,
            "hoverinfo": "skip",
        }
        traces.append(trace)
    return traces


def _outside(t: TransferInput, rule: str, colour: str) -> list[Trace]:
    """Return triangles at the ends of the grid beyond which the best learning rates lie."""
    ends = grid_ends(t.optima[rule])
    if not ends:
        return []
    words = ["above the grid" if end.above else "below the grid" for end in ends]
    symbols = ["triangle-up-open" if end.above else "triangle-down-open" for end in ends]
    triangles = {
        "type": "scatter",
        "mode": "markers",
        "x": [end.size for end in ends],
        "y": [end.lr for end in ends],
        "name": f"{rule}: outside of the grid",
        "legendgroup": rule,
        "text": words,
        "marker": {"color": colour, "size": 10, "symbol": symbols},
        "hovertemplate": f"{_escaped(rule)}<br>{t.axis} %{{x}}<br>%{{text}}<extra></extra>",
    }
    return [triangles]


def line_through(known: Sequence[Optimum], fitted: float, power: float) -> Trace:
    """Return x and y of a power law that starts where the fitted one does."""
    line_sizes = [optimum.size for optimum in known]
    doublings = np.log2(line_sizes)
    x = np.array([optimum.x for optimum in known])
    start = x.mean()
    if not math.isnan(fitted):
        start = start + fitted * (doublings[0] - doublings.mean())
    return {"x": line_sizes, "y": 2.0 ** (start + power * (doublings - doublings[0]))}


# --- forecast and loss curves ---------------------------------------------------------------------


def _forecast(t: TransferInput) -> list[Figure]:
    """Return the figure of the best loss against size with its power law; none without a law."""
    largest = max(sizes(t))
    shown = np.geomspace(min(sizes(t)), FARTHEST * largest, 25).round().astype(int)
    data: list[Trace] = []
    for rule, colour in rule_colours(t.rules).items():
        try:
            values = [t.forecast(rule=rule, **{t.axis: int(size)}) for size in shown]
        except InputError:
            continue
        data += _forecast_of_rule(t, rule, colour, shown, values)
    if not data:
        return []
    title = f"Best loss against {t.axis}, and its forecast"
    layout = {
        "title": {"text": f"{title}<br><sup>area: interval of the power law</sup>"},
        "xaxis": {
            "type": "log",
            "title": {"text": t.axis},
            "tickvals": [*sizes(t), FARTHEST * largest],
            "range": [math.log10(min(sizes(t))) - 0.05, math.log10(FARTHEST * largest) + 0.05],
        },
        "yaxis": {"title": {"text": "loss"}},
    }
    return [{"data": data, "layout": layout}]


def _forecast_of_rule(
    t: TransferInput,
    rule: str,
    colour: str,
    drawn_sizes: np.ndarray,
    forecasts: Sequence[Forecast],
) -> list[Trace]:
    """Return the interval of the power law, its line, and the losses that were measured."""
    measured = [optimum for optimum in t.optima[rule] if optimum.beyond == INSIDE]
    shared = {"type": "scatter", "legendgroup": rule}
    hover = {"hovertemplate": f"{t.axis} %{{x}}<br>loss %{{y:.4g}}<extra></extra>"}
    area = {
        "x": [*drawn_sizes.tolist(), *reversed(drawn_sizes.tolist())],
        "y": [value.high for value in forecasts] + [value.low for value in reversed(forecasts)],
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.2,
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
    }
    line = {
        "x": drawn_sizes,
        "y": [value.loss for value in forecasts],
        "mode": "lines",
        "line": {"color": colour, "width": 2},
        "name": f"{rule}: {forecasts[0].formula}",
    }
    points = {
        "x": [optimum.size for optimum in measured],
        "y": [optimum.loss for optimum in measured],
        "mode": "markers",
        "marker": {"color": colour, "size": 9},
        "showlegend": False,
    }
    return [shared | area, shared | line | hover, shared | points | hover]


def _collapse(t: TransferInput) -> list[Figure]:
    """Return one figure of normalized loss curves per rule; none without loss curves."""
    figures: list[Figure] = []
    for rule in t.rules:
        try:
            curves = t.collapse(rule=rule)
        except InputError:
            continue
        share = curves.windows.mean(1)
        data: list[Trace] = []
        for size, mean, colour in zip(
            curves.sizes, curves.means, shades(len(curves.sizes)), strict=True
        ):
            line = {
                "type": "scatter",
                "mode": "lines",
                "x": share,
                "y": mean,
                "name": f"{t.axis} {size}",
                "line": {"color": colour, "width": 2},
                "error_y": {"type": "data", "array": curves.spread, "color": colour, "width": 0},
            }
            data.append(line)
        title = f"Normalized loss curves of {_escaped(rule)}, lr {curves.lr:.3g}: {curves.verdict}"
        layout = {
            "title": {"text": f"{title}<br><sup>bars: standard deviation between seeds</sup>"},
            "xaxis": {"title": {"text": "share of the training"}},
            "yaxis": {"title": {"text": "loss / loss at the end"}},
        }
        figures.append({"data": data, "layout": layout})
    return figures


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;")
