"""One network of mean field theory: fixed points, depth scales, two maps, and two signals.

Equations of S1, "Mean field theory for deep dropout networks":

q' = (weight_var / keep) E phi(x)^2 + bias_var                            S1 (2)
c' = [weight_var E phi(x) phi(y) + bias_var] / q*                         S1 (3), (4)
"""

import math

import numpy as np

from orderone.explore.query import Query
from orderone.theory import MeanField, critical_weight_var

SCALARS = ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status")
LAYERS = 30
STEPS = 16  # of a cobweb
POINTS = 81  # of a curve
TALLEST = 1e6  # longer signals are not drawn


def network(query: Query) -> dict[str, object]:
    """Return scalars of the network, and the change of lengths and correlations with depth."""
    activation = query.word("activation")
    weight_var = query.number("weight_var")
    bias_var = query.number("bias_var")
    keep = query.number("keep")
    net = MeanField(activation, weight_var, bias_var, keep)
    q0 = query.number("q0")
    c0 = query.number("c0")
    query.done()
    settled = 0 < net.q_star < math.inf  # otherwise no signal has the length q*
    # Two pairs of signals in one call: of length q0, and of length q*
    starts = [q0, net.q_star if settled else q0]
    path = net.trajectory([starts, starts], c0, LAYERS)
    lengths = path.q[:, 0]
    if settled:
        cobweb = path.c[: STEPS + 1, 1]
    else:
        cobweb = np.array([])
    critical = critical_weight_var(net.activation, net.bias_var, net.keep)
    scalars = {name: getattr(net, name) for name in SCALARS}
    return {
        **scalars,
        "trainable_depth": net.trainable_depth(),
        "critical_weight_var": float(critical),
        "lengths": {"path": lengths, **_length_map(net, lengths)},
        "correlations": {"path": path.c[:, 0], **_correlation_map(net, cobweb)},
    }


def _length_map(net: MeanField, lengths: np.ndarray) -> dict[str, object]:
    """Return the length map over the range of the signals and 15 % more."""
    first = lengths[: STEPS + 1]
    cobweb = first[first < TALLEST]
    if net.q_star < TALLEST:
        end = net.q_star
    else:
        end = 0.0
    x = np.linspace(0, 1.15 * max(cobweb.max(initial=0.0), end) or 1.0, POINTS)
    return {"x": x, "y": net.length_map(x), "cobweb": cobweb}


def _correlation_map(net: MeanField, cobweb: np.ndarray) -> dict[str, object]:
    """Return the correlation map at the length q*."""
    x = np.linspace(-1, 1, POINTS)
    return {"x": x, "y": net.correlation_map(x), "cobweb": cobweb}
