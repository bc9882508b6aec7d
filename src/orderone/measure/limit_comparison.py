"""A finite network beside its limit: the same quantity, sampled from both, and how far apart they
are.

relu            r = log(l^2 (1 - rho_l))              network against the SDE (4.8), a step of (4.9)
                                                      for each layer
shaped-relu     rho and log V_11                      network with p = 1/2 against the SDE
                                                      (2.7)-(2.8)
shaped-smooth   the same                              the same with (2.9)
linear          the same                              the same without drift
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.measure.sampler import sample_network
from orderone.theory.limits import CovarianceSDE, Distance, UnshapedCorrelationSDE, distance

ACTIVATIONS = ("relu", "shaped-relu", "shaped-smooth", "linear")  # those with a random limit
MOST_STEPS = 1000


@dataclass(frozen=True)
class Comparison:
    """One quantity of networks and of their limit."""

    quantity: str
    network: np.ndarray
    limit: np.ndarray
    distances: tuple[Distance, ...]  # Kolmogorov-Smirnov, Wasserstein-1, energy
    # networks without this quantity: an input died (narrow ReLU networks), or both became equal to
    # rounding
    lost: int


def compare_with_limit(
    activation: Name = "relu",
    width: Count = 150,
    depth: Count = 150,
    *,
    rho0: Number = 0.3,
    samples: Count = 8192,
    seed: Count = 0,
    c_plus: Number = 0.0,
    c_minus: Number = -1.0,
    phi: Any = "tanh",
    a: Number = 1.0,
    progress: Any = None,
) -> list[Comparison]:
    """Two inputs of norm one and correlation `rho0`, < 1, at the last of `depth` layers."""
    kind = one_of(activation, ACTIVATIONS, "activation")
    rho = real(rho0, "rho0", least=-1, most=1)
    if rho > 1 - 1e-9:
        raise ValueError(
            f"rho0: expected two inputs that differ, with a correlation below 1, got {rho0!r}"
        )
    n = count(width, "width")
    d = count(depth, "depth")
    number = count(samples, "samples", least=2)
    V0: list[list[float]] = [[1.0, rho], [rho, 1.0]]
    shape: dict[str, Any] = {"c_plus": c_plus, "c_minus": c_minus, "phi": phi, "a": a}
    V = sample_network(kind, V0, n, d, number, seed, progress=progress, **shape)
    T = d / n
    dt = d / n / min(d, MOST_STEPS)
    if kind == "relu":
        limit = {"r = log(l² (1 - ρ))": UnshapedCorrelationSDE().sample(rho, T, number, dt, seed)}
        network = {name: logs(d**2 * (1 - correlations(V))) for name in limit}
    else:
        sde = CovarianceSDE(kind, **shape).sample(V0, T, number, dt, seed)
        limit, network = ({"ρ": correlations(W), "log V₁₁": logs(W[:, 0, 0])} for W in (sde, V))
    return [_compared(name, network[name], limit[name], seed) for name in limit]


def _compared(name: str, network: np.ndarray, limit: np.ndarray, seed: int) -> Comparison:
    kept = network[np.isfinite(network)]
    if kept.size < 2:
        raise ValueError(
            f"depth: all networks lost {name} on the way; take less depth or more width"
        )
    distances = tuple(
        distance(kept, limit, kind, seed=seed) for kind in ("ks", "wasserstein", "energy")
    )
    return Comparison(name, kept, limit, distances, network.size - kept.size)


def correlations(V: np.ndarray) -> np.ndarray:
    """NaN where an input died."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(V[:, 0, 1] / np.sqrt(V[:, 0, 0] * V[:, 1, 1]), -1, 1)


def logs(x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(x)
