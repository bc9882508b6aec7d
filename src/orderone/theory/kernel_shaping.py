"""Transformed activations for deep networks without skip paths: DKS and TAT.

    phi^(x) = gamma (phi(alpha x + beta) + delta)

A layer with weights of variance 1 / fan-in maps the squared length q to Q(q) = E[phi^(x)^2] with
x ~ N(0, q), and a correlation c of signals of length 1 to C(c) = E[phi^(x) phi^(y)]. For `depth`
layers:

    DKS          Q(1) = 1,  Q'(1) = 1,  C(0) = 0,   C'(1)^depth = zeta             zeta = 1.5
    TAT, smooth  Q(1) = 1,  Q'(1) = 1,  C'(1) = 1,  depth C''(1) = tau             tau = 0.3
    TAT, kinked  slope s of the negative side: C composed `depth` times at 0 is eta, eta = 0.9

with Q'(1) = E[x phi^ phi^'], C(0) = E[phi^]^2, C'(1) = E[phi^'^2] and C''(1) = E[phi^''^2] by
Price's theorem. TAT for kinked activations replaces them by sqrt(2 / (1 + s^2)) times a leaky ReLU
of slope s. DKS has no solution for activations that are homogeneous, such as the ReLU: alpha and
gamma are then one parameter.

DKS: Martens et al. 2021, "Rapid training of deep neural networks without skip connections or
normalization layers using Deep Kernel Shaping". TAT: Zhang, Botev & Martens 2022, "Deep Learning
without Shortcuts: Shaping the Kernel with Tailored Rectifiers".
"""

from collections.abc import Callable
from itertools import product
from math import acos, pi, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import brentq, root

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.theory.gaussian.panels import density, legendre

REACH = 11.0  # standard deviations
PANELS = 24  # on each side of a kink
ORDER = 16
# Starts of the search: alpha sqrt(depth) and beta. Solutions have alpha of order 1 / sqrt(depth).
SCALES = (0.9, 1.5, 2.5, 0.4)
SHIFTS = (0.3, 0.6, 0.4, 1.1, -0.2)
ENOUGH = 1e-6  # errors of the conditions
LARGEST_DEPTH = 10**5

# from x to phi, phi' and phi''
Derivatives: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


class Transformed(NamedTuple):
    """Parameters of phi^(x) = gamma (phi(alpha x + beta) + delta)."""

    alpha: float
    beta: float
    gamma: float
    delta: float


def deep_kernel_shaping(phi: Derivatives, depth: Count, zeta: Number = 1.5) -> Transformed:
    """Return the transformation of DKS for `depth` layers with an activation."""
    depth = count(depth, "depth", most=LARGEST_DEPTH)
    slope = real(zeta, "zeta", above=1) ** (1 / depth)

    def conditions(unknown: np.ndarray) -> tuple[Transformed, np.ndarray]:
        alpha = float(unknown[0])
        beta = float(unknown[1])
        x, weights = _line(alpha, beta)
        value, first, _ = phi(alpha * x + beta)
        delta = -float(weights @ value)
        centred = value + delta
        gamma = float(1 / np.sqrt(weights @ centred**2))
        length = gamma**2 * alpha * float(weights @ (x * centred * first))
        found = gamma**2 * alpha**2 * float(weights @ first**2)
        # both conditions are within O(1 / depth) of 1
        errors = np.array([length - 1, found - slope]) / (slope - 1)
        return Transformed(alpha, beta, gamma, delta), errors

    return _solved(conditions, depth, "dks")


def tailored_smooth(phi: Derivatives, depth: Count, tau: Number = 0.3) -> Transformed:
    """Return the transformation of TAT for a smooth activation and `depth` layers."""
    depth = count(depth, "depth", most=LARGEST_DEPTH)
    bend = real(tau, "tau", above=0) / depth

    def conditions(unknown: np.ndarray) -> tuple[Transformed, np.ndarray]:
        alpha = float(unknown[0])
        beta = float(unknown[1])
        x, weights = _line(alpha, beta)
        value, first, second = phi(alpha * x + beta)
        gamma = float(1 / np.sqrt(alpha**2 * (weights @ first**2)))
        # Q'(1) = 1 is linear in delta
        along = weights @ (x * first)
        delta = float((1 / (gamma**2 * alpha) - weights @ (x * value * first)) / along)
        length = gamma**2 * float(weights @ (value + delta) ** 2)
        curvature = gamma**2 * alpha**4 * float(weights @ second**2)
        errors = np.array([(length - 1) / bend, np.log(max(curvature, 1e-300) / bend)])
        return Transformed(alpha, beta, gamma, delta), errors

    return _solved(conditions, depth, "tat")


def tailored_slope(depth: Count, eta: Number = 0.9) -> float:
    """Return the negative slope of TAT for kinked activations and `depth` layers.

    It is 0, the ReLU itself, if that does not exceed `eta` after so few layers.
    """
    depth = count(depth, "depth", most=LARGEST_DEPTH)
    goal = real(eta, "eta", above=0)
    if goal >= 1:
        raise InputError(f"eta: expected a correlation below 1; got {goal:g}", argument="eta")

    def excess(slope: float) -> float:
        strength = (1 - slope) ** 2 / (pi * (1 + slope**2))
        c = 0.0
        for _ in range(depth):
            c = min(1.0, c + strength * (sqrt(1 - c * c) - c * acos(c)))  # S3 (B.6)
        return c - goal

    if excess(0.0) <= 0:
        return 0.0
    slope = brentq(excess, 0.0, 1.0, xtol=1e-12)
    assert isinstance(slope, float)
    return slope


def _solved(
    conditions: Callable[[np.ndarray], tuple[Transformed, np.ndarray]],
    depth: int,
    method: str,
) -> Transformed:
    """Return the solution from the first start that leads to one with alpha above 0."""
    with np.errstate(all="ignore"):
        for scale, shift in product(SCALES, SHIFTS):
            start = np.array([scale / sqrt(depth), shift])
            found = root(lambda unknown: _finite(conditions(unknown)[1]), start, tol=1e-13)
            transformed, errors = conditions(found.x)
            solved = bool(np.isfinite(errors).all()) and np.abs(errors).max() < ENOUGH
            if solved and transformed.alpha > 0:
                return transformed
    raise InputError(
        f'method: expected an activation for which the conditions of "{method}" have a solution,'
        ' found none; use method="shaped", or another depth or target',
        "no-shaped-form",
        argument="method",
    )


def _finite(errors: np.ndarray) -> np.ndarray:
    return np.nan_to_num(errors, nan=1e6, posinf=1e6, neginf=-1e6)


def _line(alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return x and weights of a standard normal, in panels that end where alpha x + beta is 0."""
    kink = float(np.clip(-beta / alpha, -REACH / 2, REACH / 2)) if alpha else 0.0
    nodes, weights = legendre(ORDER)
    left = np.linspace(-REACH, kink, PANELS + 1)
    right = np.linspace(kink, REACH, PANELS + 1)
    ends = np.concatenate([left, right[1:]])
    width = np.diff(ends)
    x = (ends[:-1, None] + width[:, None] * nodes).ravel()
    return x, (width[:, None] * weights).ravel() * density(x)
