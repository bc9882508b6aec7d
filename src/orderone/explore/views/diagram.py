"""A phase diagram for variances from 0 up: phases, trainable depths, the critical line."""

import numpy as np

from orderone.core.exact import count
from orderone.core.reals import real
from orderone.explore.query import Query
from orderone.theory import critical_weight_var, phase_diagram

MOST = 80  # points along an axis
LARGEST = 1000.0  # variance
LINE = 120
DEEPEST = 1e6  # the depth has no bound at the critical line
SHAPE = 3 / 4  # bias variances for each weight variance


def diagram(query: Query) -> dict[str, object]:
    """Return the arrays of the diagram, with a row for each bias variance."""
    activation = query.word("activation")
    keep = query.number("keep")
    most_weight_var = _variance(query, "most_weight_var")
    most_bias_var = _variance(query, "most_bias_var")
    points = count(query.whole("points"), "points", least=4, most=MOST)
    query.done()
    weight_var = _cells(most_weight_var, points)
    bias_var = _cells(most_bias_var, round(points * SHAPE))
    phases = phase_diagram(activation, weight_var, bias_var, keep)
    depths = np.minimum(phases.trainable_depth, DEEPEST).T
    return {
        "weight_var": weight_var,
        "bias_var": bias_var,
        "depth": [_rounded(row) for row in depths],
        "phase": np.select([phases.phase == "ordered", phases.phase == "chaotic"], [-1, 1], 0).T,
        "diverges": (phases.status == "diverges").astype(int).T,
        "critical": _critical(activation, keep, most_weight_var, most_bias_var),
    }


def _variance(query: Query, name: str) -> float:
    return real(query.number(name), name, above=0, most=LARGEST)


def _cells(top: float, size: int) -> np.ndarray:
    """Return the centres of `size` cells from 0 to `top`."""
    return (np.arange(size) + 0.5) * (top / size)


def _critical(
    activation: str, keep: float, most_weight_var: float, most_bias_var: float
) -> dict[str, np.ndarray]:
    """Return the part of the line chi_1 = 1 that lies in the diagram."""
    bias_var = np.linspace(0, most_bias_var, LINE)
    weight_var = np.asarray(critical_weight_var(activation, bias_var, keep))
    visible = weight_var <= most_weight_var
    return {"weight_var": weight_var[visible], "bias_var": bias_var[visible]}


def _rounded(depths: np.ndarray) -> list[float]:
    return [float(f"{depth:.4g}") for depth in depths]
