"""Transformed activations for deep networks without skip paths: DKS and TAT.

    phi^(x) = gamma (phi(alpha x + beta) + delta)

A layer with weights of variance 1 / fan-in maps the squared length q to Q(q) = E[phi^(x)^2] with
x ~ N(0, q), and a correlation c of signals of length 1 to C(c) = E[phi^(x) phi^(y)]. A network
composes these maps; M(c, C) is the largest value that a subnetwork reaches from c. For a chain of
layers it is C composed `depth` times. The conditions are

    DKS          Q(1) = 1,  Q'(1) = 1,  C(0) = 0,   M(1, c -> C'(1) c) = zeta       zeta = 1.5
    TAT, smooth  Q(1) = 1,  Q'(1) = 1,  C'(1) = 1,  M(0, c -> c + C''(1)) = tau     tau = 0.3
    TAT, kinked  Q(1) = 1,  M(0, C) = eta                                           eta = 0.9

with Q'(1) = E[x phi^ phi^'], C(0) = E[phi^]^2, C'(1) = E[phi^'^2] and C''(1) = E[phi^''^2] by
Price's theorem. A chain has C'(1)^depth = zeta and depth C''(1) = tau.

Kinked activations have an infinite C''(1). TAT replaces them by a leaky ReLU of slope s, times
sqrt(2 / (1 + s^2)). The ReLU and its kin are homogeneous: alpha and gamma are then one parameter.
DKS changes their slope s as well. With beta = 0, Q'(1) = 1 holds for every s, and

    C'(1) = 1 / (1 - (1 - s)^2 / (pi (1 + s^2)))

DKS: Martens et al. 2021, "Rapid training of deep neural networks without skip connections or
normalization layers using Deep Kernel Shaping". TAT: Zhang, Botev & Martens 2022, "Deep Learning
without Shortcuts: Shaping the Kernel with Tailored Rectifiers".
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import acos, pi, sqrt
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import brentq, root

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Number, UserInput
from orderone.core.reals import real
from orderone.theory.gaussian.panels import cut_line

REACH = 16.0  # standard deviations
ORDER = 16  # of the rule between two cuts
# Starts of the search: alpha sqrt(layers), beta, and beta / alpha for functions with a corner.
SCALES = (0.9, 1.5, 2.5, 0.4)
SHIFTS = (0.3, 0.6, 1.1, -0.2, -0.5, -1.1)
CORNERS = (-1.0, 1.0, -2.0, 2.0, -3.0, 3.0)
STRETCHES = (1.0, 0.1, 10.0)  # for functions of arguments other than order one
ENOUGH = 1e-9  # errors of the conditions
MOST_TRIALS = 100  # of a search from one start
STABLE = 0.1  # change of a length over 1 / scale^2 layers
CLEARLY = 0.5  # a solution must be so much more stable than an earlier one; many have mirror images
LARGEST_DEPTH = 10**5

# from x and a number n to phi and its first n derivatives
Derivatives: TypeAlias = Callable[[np.ndarray, int], Sequence[np.ndarray]]
# M(c, C): the largest value that a subnetwork reaches from c
Network: TypeAlias = Callable[[float, Callable[[float], float]], float]
Depth: TypeAlias = Annotated[Count | Network, UserInput]


class Transformed(NamedTuple):
    """Parameters of phi^(x) = gamma (phi(alpha x + beta) + delta)."""

    alpha: float
    beta: float
    gamma: float
    delta: float


class ShiftedLeaky(NamedTuple):
    """Parameters of phi^(x) = gamma (max(x, 0) + slope min(x, 0) + delta)."""

    slope: float
    gamma: float
    delta: float


def residual_network(blocks: Count, layers: Count = 2, shortcut: Number = 0.5) -> Network:
    """Return M of `blocks` residual blocks with `layers` activations each, and one at the end.

    Blocks compute shortcut x + sqrt(1 - shortcut^2) f(x), which preserves the length of x. The
    largest subnetwork is the network, or it ends with the branch of the last block.
    """
    blocks = count(blocks, "blocks", most=LARGEST_DEPTH)
    layers = count(layers, "layers", most=LARGEST_DEPTH)
    share = real(shortcut, "shortcut", least=0, most=1) ** 2

    def largest(c: float, layer: Callable[[float], float]) -> float:
        def branch(x: float) -> float:
            for _ in range(layers):
                x = layer(x)
            return x

        before = c
        for _ in range(blocks - 1):
            before = share * before + (1 - share) * branch(before)
        ended = branch(before)
        return max(layer(share * before + (1 - share) * ended), ended)

    return largest


def deep_kernel_shaping(
    phi: Derivatives, depth: Depth, zeta: Number = 1.5, cuts: Sequence[float] = ()
) -> Transformed:
    """Return the transformation of DKS for an activation and `depth` layers, or a function M.

    phi is smooth between `cuts`.
    """
    slope = _local_slope(depth, zeta)
    points = np.array(cuts, dtype=float)

    def conditions(unknown: np.ndarray) -> tuple[Transformed, np.ndarray]:
        alpha = float(unknown[0])
        beta = float(unknown[1])
        x, weights = _line(alpha, beta, points)
        value, first = phi(alpha * x + beta, 1)
        delta = -float(weights @ value)
        centred = value + delta
        gamma = float(1 / np.sqrt(weights @ centred**2))
        steep = gamma * alpha
        length = gamma * steep * float(weights @ (x * centred * first))
        found = steep * steep * float(weights @ first**2)
        # both conditions are within O(1 / depth) of 1
        errors = np.array([length - 1, found - slope]) / (slope - 1)
        return Transformed(alpha, beta, gamma, delta), errors

    return _solved(phi, conditions, sqrt(slope - 1), points, "dks")


def shifted_leaky(depth: Depth, zeta: Number = 1.5) -> ShiftedLeaky:
    """Return the leaky ReLU of DKS for `depth` layers, or a function M."""
    slope = _local_slope(depth, zeta)
    # r = (1 - s)^2 / (1 + s^2), from C'(1) = 1 / (1 - r / pi)
    r = pi * (1 - 1 / slope)
    if r > 2:
        raise InputError(
            f"depth: expected layers with C'(1) of at most {1 / (1 - 2 / pi):.4g}, which a leaky"
            f" ReLU can have, got {slope:.4g}; use more layers, or a smaller target",
            "no-shaped-form",
            argument="depth",
        )
    # (1 - r) s^2 - 2 s + 1 - r = 0; this form has no cancellation
    s = (1 - r) / (1 + sqrt(r * (2 - r)))
    mean = (1 - s) / sqrt(2 * pi)
    return ShiftedLeaky(s, ((1 + s**2) / 2 - mean**2) ** -0.5, -mean)


def tailored_smooth(
    phi: Derivatives, depth: Depth, tau: Number = 0.3, cuts: Sequence[float] = ()
) -> Transformed:
    """Return the transformation of TAT for an activation with a continuous slope.

    phi is smooth between `cuts`. `depth` is a number of layers, or a function M.
    """
    curvature = real(tau, "tau", above=0)
    if callable(depth):
        bend = curvature / depth(0.0, lambda c: c + 1.0)  # M is homogeneous here
    else:
        bend = curvature / count(depth, "depth", most=LARGEST_DEPTH)
    points = np.array(cuts, dtype=float)

    def conditions(unknown: np.ndarray) -> tuple[Transformed, np.ndarray]:
        alpha = float(unknown[0])
        beta = float(unknown[1])
        x, weights = _line(alpha, beta, points)
        value, first, second = phi(alpha * x + beta, 2)
        steep = float(1 / np.sqrt(weights @ first**2))
        gamma = float(np.divide(steep, alpha))
        # Q'(1) = 1 is linear in delta
        along = weights @ (x * first)
        delta = float((np.divide(1, gamma * steep) - weights @ (x * value * first)) / along)
        length = gamma * gamma * float(weights @ (value + delta) ** 2)
        found = steep * steep * alpha * alpha * float(weights @ second**2)
        errors = np.array([(length - 1) / bend, np.log(max(found, 1e-300) / bend)])
        return Transformed(alpha, beta, gamma, delta), errors

    return _solved(phi, conditions, sqrt(bend), points, "tat")


def tailored_slope(depth: Depth, eta: Number = 0.9) -> float:
    """Return the negative slope of TAT for kinked activations and `depth` layers, or a function M.

    It is 0, the ReLU itself, if that does not exceed `eta` after so few layers.
    """
    network = _network(depth)
    goal = real(eta, "eta", above=0)
    if goal >= 1:
        raise InputError(f"eta: expected a correlation below 1; got {goal:g}", argument="eta")

    def excess(slope: float) -> float:
        strength = (1 - slope) ** 2 / (pi * (1 + slope**2))

        def layer(c: float) -> float:
            angle = sqrt(max(1 - c * c, 0.0)) - c * acos(min(c, 1.0))
            return min(1.0, c + strength * angle)  # S3 (B.6)

        return network(0.0, layer) - goal

    if excess(0.0) <= 0:
        return 0.0
    slope = brentq(excess, 0.0, 1.0, xtol=1e-14)
    assert isinstance(slope, float)
    return slope


def _network(depth: Depth) -> Network:
    """Return the function M of a network; for a number of layers, that of a chain."""
    if callable(depth):
        return depth
    layers = count(depth, "depth", most=LARGEST_DEPTH)

    def chain(c: float, layer: Callable[[float], float]) -> float:
        for _ in range(layers):
            c = layer(c)
        return c

    return chain


def _local_slope(depth: Depth, zeta: Number) -> float:
    """Return C'(1) of a layer, from M(1, c -> C'(1) c) = zeta."""
    goal = real(zeta, "zeta", above=1)
    if not callable(depth):
        return float(goal ** (1 / count(depth, "depth", most=LARGEST_DEPTH)))
    network = depth

    def excess(log_slope: float) -> float:
        factor = float(np.exp(log_slope))
        return float(np.log(network(1.0, lambda c: factor * c) / goal))

    if not excess(float(np.log(goal))) >= 0:
        raise InputError(
            "depth: expected a function M(c, C) of at least C(c), because one layer is a"
            " subnetwork; got a smaller value",
            argument="depth",
        )
    solution = brentq(excess, 0.0, float(np.log(goal)), xtol=1e-16)
    assert isinstance(solution, float)
    return float(np.exp(solution))


def _solved(
    phi: Derivatives,
    conditions: Callable[[np.ndarray], tuple[Transformed, np.ndarray]],
    scale: float,
    points: np.ndarray,
    method: str,
) -> Transformed:
    """Return the first solution with alpha above 0 and stable lengths.

    If there is none, return the first one that is clearly not less stable than all others. Starts
    stretched by other factors are tried if there is no solution.
    """
    best = None
    smallest = np.inf
    with np.errstate(all="ignore"):
        for starts in _starts(scale):
            for start in starts:
                found = root(
                    lambda unknown: _finite(conditions(unknown)[1]),
                    start,
                    tol=1e-13,
                    options={"maxfev": MOST_TRIALS},
                )
                transformed, errors = conditions(found.x)
                solved = bool(np.isfinite(errors).all()) and np.abs(errors).max() < ENOUGH
                if not solved or transformed.alpha <= 0:
                    continue
                moved = _moved_lengths(phi, transformed, points)
                if moved <= STABLE * scale**2:
                    return transformed
                if moved < CLEARLY * smallest:
                    best = transformed
                    smallest = moved
            if best is not None:
                return best
    raise InputError(
        f'method: expected an activation for which the conditions of "{method}" have a solution,'
        ' found none; use method="shaped", or another depth or target',
        "no-shaped-form",
        argument="method",
    )


def _starts(scale: float) -> Iterator[list[np.ndarray]]:
    """Yield lists of alpha and beta. In deep networks alpha is of the order of `scale`."""
    for stretch in STRETCHES:
        starts = []
        for factor, shift in product(SCALES, SHIFTS):
            starts.append(stretch * np.array([factor * scale, shift]))
        for factor, shift in product(SCALES[:2], CORNERS):
            starts.append(stretch * factor * scale * np.array([1.0, shift]))
        yield starts


def _moved_lengths(phi: Derivatives, transformed: Transformed, points: np.ndarray) -> float:
    """Return the largest |Q(q) / q - 1| at q = 1/2 and 2; conditions know Q near 1 only."""
    alpha, beta, gamma, delta = transformed
    moved = []
    for q in (0.5, 2.0):
        x, weights = _line(alpha * sqrt(q), beta, points)
        (value,) = phi(alpha * sqrt(q) * x + beta, 0)
        moved.append(abs(float(weights @ (gamma * (value + delta)) ** 2) / q - 1))
    return max(moved)


def _finite(errors: np.ndarray) -> np.ndarray:
    return np.nan_to_num(errors, nan=1e6, posinf=1e6, neginf=-1e6)


def _line(alpha: float, beta: float, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x and weights of a standard normal, in panels that end where phi is not smooth."""
    cuts = np.zeros(0)
    if alpha and np.isfinite([alpha, beta]).all():
        cuts = (points - beta) / alpha
    return cut_line(cuts[np.abs(cuts) < REACH], ORDER, REACH)
