"""Tables and figure of the ladder: losses, forecasts, compute, and collapse of the loss curves."""

import json
from math import isfinite
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy
import pandas

mpl.use("Agg")
import matplotlib.pyplot as plt
from scipy.stats import t as student

from orderone.core.colours import rule_colours
from orderone.core.errors import InputError
from orderone.sweeping.collapse import Collapse, collapse
from studies.ladder import forecast as forecasts
from studies.ladder.sizes import Scale, Size
from studies.pieces import Records

METHODS = ("full", "width", "standard", "standard-fan-in")
LEVEL = 0.95
# factors of the horizontal place, so that methods do not cover each other
PLACES = {"full": 1.0, "width": 1.045, "standard": 1.045, "standard-fan-in": 1.09}


def report(records: Records, scale: Scale) -> None:
    """Print the losses of the tuning, the results by method and size, and what the text claims."""
    frame = records.rows()
    print(losses_by_rate(frame, scale))
    print()
    print(results(frame, read_forecast(records), scale))
    sentences = [*compared(frame, scale), *width_compared(frame, scale)]
    for sentence in (*sentences, curves_sentence(records, scale)):
        print()
        print(sentence)


def read_forecast(records: Records) -> dict[str, Any]:
    path = records.folder / forecasts.NAME
    return json.loads(path.read_text()) if path.exists() else {}


def losses_by_rate(frame: pandas.DataFrame, scale: Scale) -> str:
    """Return the table of mean losses over seeds: one line per rate, one column per size."""
    rows = cast(pandas.DataFrame, frame[frame["method"] == "full"])
    rows = rows[rows["piece"].astype(str).str.startswith("tune-")]
    sizes = [size.name for size in scale.all if size.name in set(rows["size"])]
    table = rows.pivot_table(index="lr", columns="size", values="loss", aggfunc="mean")
    lines = [f"| learning rate | {' | '.join(sizes)} |", "| --- " * (len(sizes) + 1) + "|"]
    for rate, values in table[sizes].iterrows():
        cells = [f"{value:.3f}" if isfinite(value) else "-" for value in values]
        lines.append(f"| 2^{numpy.log2(cast(float, rate)):.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def results(frame: pandas.DataFrame, written: dict[str, Any], scale: Scale) -> str:
    """Return the table of the best loss by method and size, its forecast, and the compute."""
    lines = [
        "| method | size | trainings | best rate | loss | forecast | exaFLOP so far |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    counted = frame[~frame["piece"].astype(str).str.startswith("curves-")]
    for method in METHODS:
        spent = 0.0
        for size in scale.all:
            rows = _of(counted, method, size)
            if rows.empty:
                continue
            spent += sum(rows["flops"]) / 1e18
            means = cast(pandas.Series, rows.groupby("lr")["loss"].mean())
            expected = written.get(method, {}).get("losses", {}).get(size.name)
            lines.append(
                f"| {method} | {size.name} | {len(rows)} | {cast(float, means.idxmin()):.3g} |"
                f" {means.min():.4f} | {_interval(expected)} | {spent:.3f} |"
            )
    return "\n".join(lines)


def _of(frame: Any, method: str, size: Size) -> pandas.DataFrame:
    chosen = (frame["method"] == method) & (frame["size"] == size.name)
    return cast(pandas.DataFrame, frame[chosen])


def _best_losses(rows: pandas.DataFrame) -> numpy.ndarray:
    """Return the losses of all seeds at the best rate."""
    means = cast(pandas.Series, rows.groupby("lr")["loss"].mean())
    chosen = cast(pandas.DataFrame, rows[rows["lr"] == means.idxmin()])
    return numpy.asarray(chosen["loss"], float)


def _interval(expected: list[float] | str | None) -> str:
    if expected is None or isinstance(expected, str) or not isfinite(expected[0]):
        return "-"
    return f"{expected[0]:.4f} [{expected[1]:.4f}, {expected[2]:.4f}]"


def compared(frame: pandas.DataFrame, scale: Scale) -> list[str]:
    """Return the differences of other methods to `full` at the size of the comparison.

    The interval has the standard deviation between seeds, pooled over all methods.
    """
    losses: dict[str, numpy.ndarray] = {}
    for method in METHODS:
        rows = _of(frame, method, scale.compared)
        if len(rows) > 1:
            losses[method] = rows["loss"].to_numpy(float)
    if "full" not in losses or len(losses) == 1:
        return [f"No comparison at {scale.compared.name}: not all methods have two seeds there."]
    freedom = sum(len(values) - 1 for values in losses.values())
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in losses.values())
    deviation = (squares / freedom) ** 0.5
    sentences: list[str] = []
    for method, values in losses.items():
        if method == "full":
            continue
        gap = float(values.mean() - losses["full"].mean())
        error = deviation * (1 / len(values) + 1 / len(losses["full"])) ** 0.5
        reach = float(student.ppf((1 + LEVEL) / 2, freedom)) * error
        sentences.append(
            f"{scale.compared.name}: {method} minus full: {gap:+.4f}"
            f" [{gap - reach:+.4f}, {gap + reach:+.4f}]"
        )
    return sentences


def width_compared(frame: pandas.DataFrame, scale: Scale) -> list[str]:
    """Return condition 3 of the protocol: `width` minus `full`, both with the rate of the base.

    The deviation between seeds of `full` is pooled over all its rates at this size.
    """
    size = scale.tuned[-1]
    width = _of(frame, "width", size)
    full = _of(frame, "full", size)
    same = full[full["lr"].isin(width["lr"])]
    if width.empty or same.empty:
        return []
    gap = numpy.asarray(width["loss"]).mean() - numpy.asarray(same["loss"]).mean()
    variances = cast(pandas.Series, full.groupby("lr")["loss"].var())
    deviation = numpy.asarray(variances).mean() ** 0.5
    verdict = "do harm" if gap < -2 * deviation else "are not shown to do harm"
    return [
        f"{size.name}, the rate of the base: width minus full: {gap:+.4f}; twice the standard"
        f" deviation between seeds of full is {2 * deviation:.4f}: the rules for depth, batch and"
        f" tokens {verdict}."
    ]


# --- collapse of the loss curves ------------------------------------------------------------------


def loss_curves(records: Records, scale: Scale) -> dict[int, list[numpy.ndarray]]:
    """Return the training losses of `full` with the carried rate, by the number of parameters."""
    if not records.curves.exists():
        return {}
    frame = pandas.read_csv(records.curves)
    windows = [name for name in frame.columns if name.startswith("w")]
    curves: dict[int, list[numpy.ndarray]] = {}
    for size in (*scale.tuned, scale.compared, scale.largest):
        names = frame["piece"].astype(str)
        is_run = names.str.startswith(f"run-full-{size.name}-")
        chosen = frame[is_run | (names == f"curves-full-{size.name}")]
        for values in numpy.asarray(chosen[windows], float):
            curves.setdefault(size.parameters(), []).append(values[numpy.isfinite(values)])
    return curves


def collapse_of_curves(records: Records, scale: Scale) -> Collapse:
    """Compare the normalised loss curves of all sizes with two trainings or more."""
    several = {n: runs for n, runs in loss_curves(records, scale).items() if len(runs) > 1}
    rate = read_forecast(records).get("full", {}).get("rates", {}).get(scale.compared.name, 0.0)
    return collapse("full", several, axis="size", lr=rate, offset=0.0, confidence=LEVEL)


def curves_sentence(records: Records, scale: Scale) -> str:
    try:
        return f"Collapse of the loss curves: {collapse_of_curves(records, scale).sentence}."
    except InputError as error:
        return f"Collapse of the loss curves: {error}"


# --- figure ---------------------------------------------------------------------------------------


def draw(records: Records, scale: Scale, path: Path) -> None:
    """Draw the best loss against the parameters, by method, with the forecast and its interval."""
    frame = records.rows()
    written = read_forecast(records)
    colours = {**rule_colours(("standard", "mup"))}
    styles = {
        "full": (colours["mup"], "o", "full: width, depth, batch, tokens"),
        "width": (colours["mup"], "s", "width only"),
        "standard": (colours["standard"], "o", "standard"),
        "standard-fan-in": (colours["standard"], "s", "standard with fan-in"),
    }
    figure, axes = plt.subplots(figsize=(7.4, 3.6), dpi=150, layout="constrained")
    for method in METHODS:
        colour, marker, label = styles[method]
        for k, size in enumerate(size for size in scale.all if len(_of(frame, method, size))):
            losses = _best_losses(_of(frame, method, size))
            axes.plot(
                [size.parameters() * PLACES[method]] * len(losses),
                losses,
                marker,
                color=colour,
                markersize=5,
                markerfacecolor="white" if size in scale.pilot else colour,
                label=label if k == 0 else None,
            )
    _draw_forecast(axes, written, scale)
    axes.set_xscale("log")
    sizes = [size.parameters() for size in scale.all]
    axes.set_xticks(sizes, [size.name for size in scale.all])
    axes.minorticks_off()
    axes.set_xlabel("parameters (20 tokens per parameter; open: pilots, not part of the law)")
    axes.set_ylabel("held-out loss, nats per byte")
    axes.grid(color="#dddddd")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path)
    plt.close(figure)


def _draw_forecast(axes: Any, written: dict[str, Any], scale: Scale) -> None:
    """Draw the forecast as grey bars behind the trainings."""
    losses = written.get("full", {}).get("losses", {})
    for size in (scale.compared, scale.largest):
        expected = losses.get(size.name)
        if expected is None or isinstance(expected, str):
            continue
        middle, low, high = expected
        axes.errorbar(
            [size.parameters()],
            [middle],
            yerr=[[middle - low], [high - middle]],
            fmt="_",
            color="#888888",
            elinewidth=6,
            alpha=0.6,
            markersize=14,
            zorder=1,
        )
