"""Singular values of the Jacobian from input to output of a wide network at its fixed point.

    J = product over layers of D W,      D = diag(phi'(z) p / keep)

For large n, D and W are free, and the S-transform of J J^T is a product over layers. With
mu_k = E[(phi' p / keep)^(2k)] and s_1 = -1 for Gaussian, 0 for orthogonal weights, the eigenvalues
of J J^T have

    mean      m = (weight_var mu_1)^depth = chi_1^depth
    variance  m^2 depth (mu_2 / mu_1^2 - 1 - s_1)

The largest eigenvalue is the end of the spectrum. With M(u) = E[u d^2 / (1 - u d^2)] of one layer,
d = phi' p / keep, and z = M(u),

    1 / largest = max over u of   z / (1 + z) (S_W(z) u (1 + z) / z)^depth
    S_W         = 1 / weight_var for orthogonal weights, 1 / (weight_var (1 + z)) for Gaussian ones

Dynamical isometry: all singular values near one. It needs chi_1 = 1 and a variance that stays small
although it is proportional to depth: orthogonal weights, and mu_2 near mu_1^2.

Pennington, Schoenholz & Ganguli 2017, "Resurrecting the sigmoid in deep learning through dynamical
isometry", (9)-(18), (27). Orthogonal weights have the lengths and correlations of S1 (2)-(6) too.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from scipy.optimize import minimize_scalar

from orderone.core.errors import InputError, instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, UserInput
from orderone.theory.finite_width.averages import line
from orderone.theory.gaussian import expect
from orderone.theory.meanfield import MeanField

WEIGHTS = ("gaussian", "orthogonal")
Network: TypeAlias = Annotated[MeanField, UserInput]


@dataclass(frozen=True)
class JacobianSpectrum:
    """Squared singular values of the Jacobian, in the limit of infinite width."""

    mean: float
    variance: float
    largest: float

    @property
    def spread(self) -> float:
        """Return the standard deviation in units of the mean: 0 for perfect isometry."""
        return self.variance**0.5 / self.mean


def jacobian_spectrum(
    network: Network, depth: Count, weights: Name = "gaussian"
) -> JacobianSpectrum:
    """Return mean, variance and end of the spectrum of J J^T after `depth` layers.

    `network` is one `MeanField`, with dropout or without; `weights` are "gaussian" or
    "orthogonal".
    """
    network = instance(network, MeanField, "network", "pass MeanField(...)")
    depth = count(depth, "depth")
    weights = one_of(weights, WEIGHTS, "weights")
    weight_var, _, keep = (float(value) for value in network.one())
    q = float(network.q_star)
    if not np.isfinite(q):
        raise InputError(
            "network: expected lengths with a fixed point, got a network whose lengths diverge;"
            " take a smaller weight_var",
            argument="network",
        )
    phi = network.phi
    z, chance = line(phi, q)
    squares = np.asarray(phi.derivative(np.sqrt(q) * z), dtype=float) ** 2 / keep**2
    chance = keep * chance  # dropped neurons have slope 0
    first = float(phi.derivative_moment(q)) / keep
    fourth = expect(lambda x: np.asarray(phi.derivative(x)) ** 4, q)
    second = float(fourth.value) / keep**3
    if not 0 < first < np.inf or not np.isfinite(second):
        raise InputError(
            "network: expected an activation with a finite slope that is not 0, got the mean square"
            f" {first:.3g}; jumps have no Jacobian",
            argument="network",
        )
    shape = 1.0 if weights == "gaussian" else 0.0
    mean = (weight_var * first) ** depth
    variance = mean**2 * depth * (second / first**2 - 1 + shape)
    largest = _largest(squares, chance, weight_var, depth, shape)
    return JacobianSpectrum(mean, max(variance, 0.0), largest)


def _largest(
    squares: np.ndarray, chance: np.ndarray, weight_var: float, depth: int, shape: float
) -> float:
    """Return the end of the spectrum, from the stationary point of the inverse function."""
    top = float(squares[chance > 1e-16].max())
    scaled = squares / top

    def log_inverse(t: float) -> float:
        """Return log of the function to maximize at u = (1 - e^-t) / top."""
        u = -np.expm1(-t)
        z = float(chance @ (u * scaled / np.maximum(1 - u * scaled, 1e-300)))
        if z <= 0:
            return -np.inf
        layer = np.log(u / top / weight_var) + np.log1p(z) - np.log(z) - shape * np.log1p(z)
        return np.log(z) - np.log1p(z) + depth * layer

    grid = np.geomspace(1e-8, 60.0, 400)
    values = [log_inverse(t) for t in grid]
    best = int(np.argmax(values))
    low = grid[max(best - 1, 0)]
    high = grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(
        lambda t: -log_inverse(t), bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    )
    return float(np.exp(-max(-found.fun, max(values))))
