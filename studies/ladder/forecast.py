"""Learning rates and expected losses of the larger sizes, from the tuned ones alone.

`full` carries the best rate of the largest tuned size. `standard` and `standard-fan-in` extrapolate
theirs with `Transfer.target` over the width: by the measured drift if it is certain, otherwise by
the one that theory predicts, -1 octave per doubling. Losses are those of a power law with an offset
in the number of parameters, through the three sizes that were tuned with `full`.
"""

from collections.abc import Sequence
from typing import Any, cast

import pandas

import orderone as o1
from orderone.core.errors import InputError
from studies.ladder.sizes import Scale, Size

NAME = "forecast.json"
STANDARD = ("standard", "standard-fan-in")


def forecast(frame: pandas.DataFrame, scale: Scale) -> dict[str, Any]:
    """Return rates by method and size, and the expected losses of `full`."""
    result: dict[str, Any] = {}
    full = rows_of(frame, "full", scale.tuned)
    if has_all(full, scale.tuned):
        result["full"] = _full(full, scale)
    for method in STANDARD:
        sizes = scale.tuned[:2]
        rows = rows_of(frame, method, sizes)
        if method == "standard-fan-in":  # at the base it is the same model as `full`
            base = rows_of(frame, "full", sizes[:1])
            rows = pandas.concat([base, rows]).assign(rule="standard")
        if has_all(rows, sizes):
            target = transfer(rows, "width").target(width=scale.compared.width)
            result[method] = {"rates": {scale.compared.name: float(target.lr)}, "why": target.why}
    return result


def rows_of(frame: pandas.DataFrame, method: str, sizes: Sequence[Size]) -> pandas.DataFrame:
    """Return the tuning of a method at these sizes."""
    names = [size.name for size in sizes]
    is_tuning = frame["piece"].astype(str).str.startswith("tune-")
    chosen = is_tuning & (frame["method"] == method) & frame["size"].isin(names)
    return cast(pandas.DataFrame, frame[chosen])


def has_all(rows: pandas.DataFrame, sizes: Sequence[Size]) -> bool:
    """Return whether every size has its best rate inside its grid."""
    for size in sizes:
        part = cast(pandas.DataFrame, rows[rows["size"] == size.name])
        if part.empty or _optimum(part).beyond:
            return False
    return True


def next_rate(rows: pandas.DataFrame) -> float | None:
    """Return the next rate outside the grid of one size, if its best rate is at or beyond an end.

    None if the best rate is inside, or if nothing can be said about it.
    """
    place = _optimum(rows).beyond
    if place == "above":
        return 2 * max(rows["lr"])
    if place == "below":
        return min(rows["lr"]) / 2
    return None


def _optimum(rows: pandas.DataFrame) -> Any:
    """Return the best rate of one size, as `Transfer` finds it."""
    (several,) = transfer(rows, "width").optima.values()
    return several[0]


def _full(rows: pandas.DataFrame, scale: Scale) -> dict[str, Any]:
    study = transfer(rows, "parameters")
    best = dict(zip(study.frame["width"], study.frame["lr"], strict=True))
    drift = next(iter(study.drift.values()))
    carried = float(best[scale.tuned[-1].parameters()])
    large = (scale.compared, scale.largest)
    return {
        "best_rates": {size.name: float(best[size.parameters()]) for size in scale.tuned},
        "drift_per_doubling_of_parameters": [drift.slope, drift.low, drift.high, drift.verdict],
        "rates": {size.name: carried for size in large},
        "losses": {size.name: _loss(study, size) for size in large},
    }


def _loss(study: o1.Transfer, size: Size) -> list[float] | str:
    """Return forecast, low and high end; or the reason why there is none."""
    try:
        expected = study.forecast(width=size.parameters())
    except InputError as error:
        return str(error)
    return [expected.loss, expected.low, expected.high]


def transfer(rows: pandas.DataFrame, axis: str) -> o1.Transfer:
    """Return the transfer study of tuned sizes, with `axis` in the place of the width."""
    columns = ["lr", "seed", "rule", "loss", "diverged"]
    chosen = cast(pandas.DataFrame, rows[columns])
    return o1.Transfer.from_frame(chosen.assign(width=rows[axis]))
