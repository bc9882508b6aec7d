"""One network of mean field theory: its fixed points and depth scales, its two maps, and a pair of
signals on the way.

q' = (weight_var / keep) E phi(x)^2 + bias_var                                                S1 (2)
c' = [weight_var E phi(x) phi(y) + bias_var] / q*                                        S1 (3), (4)
"""

import math
from typing import Any

import numpy as np

from orderone.explore.query import Query
from orderone.theory import MeanField, critical_weight_var

SCALARS = ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status")
LAYERS = 30
STEPS = 16  # of a trajectory, of a cobweb
POINTS = 81  # of a curve
TALLEST = 1e6  # a length that is still drawn


def network(query: Query) -> dict[str, Any]:
    names = ("weight_var", "bias_var", "keep")
    given = MeanField(query.word("activation"), *(query.number(name) for name in names))
    q0 = query.number("q0")
    c0 = query.number("c0")
    query.done()
    settled = 0 < given.q_star < math.inf  # else there is no network to follow at that length
    starts = [q0, given.q_star if settled else q0]
    path = given.trajectory(
        [starts, starts], c0, LAYERS
    )  # two pairs at once: of length q0, and of length q*
    q, c, at_star = path.q[:, 0], path.c[:, 0], path.c[: STEPS + 1, 1]
    found = {name: getattr(given, name) for name in SCALARS} | {
        "trainable_depth": given.trainable_depth()
    }
    return {
        **found,
        "critical_weight_var": float(
            critical_weight_var(given.activation, given.bias_var, given.keep)
        ),
        "lengths": {"path": q, **_length_map(given, q)},
        "correlations": {
            "path": c,
            **_correlation_map(given, at_star if settled else np.array([])),
        },
    }


def _length_map(given: MeanField, q: np.ndarray) -> dict[str, Any]:
    """The curve as far as the signals go, and a little farther."""
    seen = q[: STEPS + 1][q[: STEPS + 1] < TALLEST]
    end = given.q_star if given.q_star < TALLEST else 0.0
    x = np.linspace(0, 1.15 * max(seen.max(initial=0.0), end) or 1.0, POINTS)
    return {"x": x, "y": given.length_map(x), "cobweb": seen}


def _correlation_map(given: MeanField, cobweb: np.ndarray) -> dict[str, Any]:
    """At the length q*."""
    x = np.linspace(-1, 1, POINTS)
    return {"x": x, "y": given.correlation_map(x), "cobweb": cobweb}
