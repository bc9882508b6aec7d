"""A phase diagram from no weights and biases up to what is asked for: phases, trainable depths, the
critical line."""

from typing import Any

import numpy as np

from orderone.core.exact import count
from orderone.core.reals import real
from orderone.explore.query import Query
from orderone.theory import critical_weight_var, phase_diagram

MOST = 80  # points along an axis
LARGEST = 1000.0  # variance
LINE = 120
DEEPEST = 1e6  # next to the line the depth has no bound
SHAPE = 3 / 4  # bias variances for each weight variance


def diagram(query: Query) -> dict[str, Any]:
    activation = query.word("activation")
    keep = query.number("keep")
    tops = [
        real(query.number(name), name, above=0, most=LARGEST)
        for name in ("most_weight_var", "most_bias_var")
    ]
    points = count(query.whole("points"), "points", least=4, most=MOST)
    query.done()
    sizes = points, round(points * SHAPE)
    weights, biases = (
        (np.arange(size) + 0.5) * (top / size) for top, size in zip(tops, sizes, strict=True)
    )  # of cells
    found = phase_diagram(activation, weights, biases, keep)
    return {
        "weight_var": weights,
        "bias_var": biases,
        "depth": [
            [_rounded(depth) for depth in row]
            for row in np.minimum(found.trainable_depth, DEEPEST).T
        ],
        "phase": np.select([found.phase == "ordered", found.phase == "chaotic"], [-1, 1], 0).T,
        "diverges": (found.status == "diverges").astype(int).T,
        "critical": _critical(activation, keep, *tops),
    }


def _critical(
    activation: str, keep: float, most_weight_var: float, most_bias_var: float
) -> dict[str, np.ndarray]:
    """chi_1 = 1, as far as it is in the picture."""
    bias_var = np.linspace(0, most_bias_var, LINE)
    weight_var = np.asarray(critical_weight_var(activation, bias_var, keep))
    seen = weight_var <= most_weight_var
    return {"weight_var": weight_var[seen], "bias_var": bias_var[seen]}


def _rounded(depth: float) -> float:
    return float(f"{depth:.4g}")
