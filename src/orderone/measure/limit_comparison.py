"""Finite networks compared with their limit: a quantity sampled from both, and their distance.

kind            quantity                    network against
relu            r = log(l^2 (1 - rho_l))    SDE (4.8), a step of (4.9) for each layer
shaped-relu     rho and log V_11            SDE (2.7)-(2.8); the network has p = 1/2
shaped-smooth   the same                    the same with (2.9)
linear          the same                    the same without drift
"""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.measure.sampler import ActivationInput, ProgressInput, sample_network
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
    # networks without this quantity: an output became zero (narrow ReLU networks), or both became
    # equal up to rounding
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
    phi: ActivationInput = "tanh",
    a: Number = 1.0,
    progress: ProgressInput | None = None,
) -> list[Comparison]:
    """Compare networks with their limit at the last of `depth` layers.

    The two inputs have norm one and correlation `rho0` < 1.
    """
    kind = one_of(activation, ACTIVATIONS, "activation")
    rho = real(rho0, "rho0", least=-1, most=1)
    if rho > 1 - 1e-9:
        message = f"rho0: expected a correlation below 1 (two different inputs), got {rho0!r}"
        raise InputError(message, argument="rho0")
    n = count(width, "width")
    d = count(depth, "depth")
    number = count(samples, "samples", least=2)
    V0: list[list[float]] = [[1.0, rho], [rho, 1.0]]
    shape: _Shape = {"c_plus": c_plus, "c_minus": c_minus, "phi": phi, "a": a}
    V = sample_network(kind, V0, n, d, number, seed, progress=progress, **shape)
    T = d / n
    dt = d / n / min(d, MOST_STEPS)
    if kind == "relu":
        limit = UnshapedCorrelationSDE().sample(rho, T, number, dt, seed)
        network = logs(d**2 * (1 - correlations(V)))
        return [_compared("r = log(l² (1 - ρ))", network, limit, seed)]
    V_limit = CovarianceSDE(kind, **shape).sample(V0, T, number, dt, seed)
    return [
        _compared("ρ", correlations(V), correlations(V_limit), seed),
        _compared("log V₁₁", logs(V[:, 0, 0]), logs(V_limit[:, 0, 0]), seed),
    ]


class _Shape(TypedDict):
    """Options of shaped activations."""

    c_plus: Number
    c_minus: Number
    phi: ActivationInput
    a: Number


def _compared(name: str, network: np.ndarray, limit: np.ndarray, seed: int) -> Comparison:
    finite = network[np.isfinite(network)]
    if finite.size < 2:
        message = (
            f"depth: {name} is not finite in any network at this depth; use less depth or more"
            " width"
        )
        raise InputError(message, "signals-lost", argument="depth")
    distances = tuple(
        distance(finite, limit, kind, seed=seed) for kind in ("ks", "wasserstein", "energy")
    )
    return Comparison(name, finite, limit, distances, network.size - finite.size)


def correlations(V: np.ndarray) -> np.ndarray:
    """Return the correlations of two outputs; NaN where an output is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(V[:, 0, 1] / np.sqrt(V[:, 0, 0] * V[:, 1, 1]), -1, 1)


def logs(x: np.ndarray) -> np.ndarray:
    """Return logarithms; -inf where x is zero."""
    with np.errstate(divide="ignore"):
        return np.log(x)
