"""E g(rho_T): hyperbolic Brownian motion for linear networks, finite differences in the angle for
bent ones, and paths."""

from math import pi
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import simpson
from scipy.interpolate import CubicSpline
from scipy.sparse.linalg import splu

from orderone.theory.limits import CovarianceSDE, correlation_mean


def root(rho):
    return np.sqrt(1 - rho**2)


def hyperbolic_mean(g, rho0, t):
    """For linear networks y = artanh(rho) has the generator (d^2 + tanh(y) d) / 2: it is the
    distance from a geodesic of a Brownian motion on the hyperbolic plane, whose density at distance
    d is McKean's (1970)."""
    d = np.linspace(1e-9, 14 * t**0.5 + t, 4001)[:, None]
    x, weights = np.polynomial.legendre.leggauss(200)
    reach = (12 * t**0.5 + t) ** 0.5 / 2
    x, weights = (x + 1) * reach, weights * reach
    s = d + x**2  # takes the root out of the integral
    root_of_difference = np.sqrt(2 * np.sinh((s + d) / 2) * np.sinh(x**2 / 2))
    density = (s * np.exp(-(s**2) / 2 / t) * 2 * x / root_of_difference) @ weights
    density *= 2**0.5 * np.exp(-t / 8) / (2 * pi * t) ** 1.5
    log_density = CubicSpline(d[:, 0], np.log(density))
    y0, far = np.arctanh(rho0), 11 * t**0.5 + t / 2
    y, along = np.linspace(-far, far, 1201)[:, None], np.linspace(-far, far, 1200)
    distance = np.arccosh(np.cosh(y0) * np.cosh(y) * np.cosh(along) - np.sinh(y0) * np.sinh(y))
    p = np.where(distance < d[-1], np.exp(log_density(np.minimum(distance, d[-1]))), 0) * np.cosh(y)
    p = np.trapezoid(p, along, axis=1)
    return simpson(p * g(np.tanh(y[:, 0])), x=y[:, 0])


@pytest.mark.parametrize(("rho0", "T"), [(0.3, 10.0), (0.3, 1.0), (-0.6, 0.3)])
@pytest.mark.parametrize(
    ("g", "error"),
    [(root, 3e-8), (np.square, 3e-8), (lambda rho: rho**3 - rho, 3e-8), (np.abs, 1e-6)],
)
def test_linear_networks_are_hyperbolic_brownian_motion(g, error, rho0, T):
    assert correlation_mean(g, rho0, T, 0.5, 0.5) == pytest.approx(
        hyperbolic_mean(g, rho0, T), abs=error
    )


def by_differences(g, theta0, T, k, points):
    """u_t = -k (sin - theta cos) / sin u_theta + sin^2 / 2 u_theta_theta, theta = arccos(rho):
    Crank and Nicolson."""
    theta = np.linspace(0, pi, points + 1)
    h, sin, steps = theta[1], np.sin(theta[1:-1]), points // 4
    away = k * (sin - theta[1:-1] * np.cos(theta[1:-1])) / sin / (2 * h)
    low, high = np.zeros((2, points + 1))
    low[1:-1], high[1:-1] = sin**2 / 2 / h**2 + away, sin**2 / 2 / h**2 - away
    beside: Any = [-1, 0, 1]
    half = sparse.diags_array([low[1:], -low - high, high[:-1]], offsets=beside) * (T / steps / 2)
    ahead, behind = (
        sparse.lil_array(sparse.eye_array(points + 1) + sign * half) for sign in (1, -1)
    )
    ahead[-1], behind[-1] = 0, 0
    behind[-1, -3:] = [1, -4, 3]  # at pi the drift is infinite and u is even
    solver, ahead, u = splu(sparse.csc_array(behind)), sparse.csr_array(ahead), g(np.cos(theta))
    for _ in range(steps):
        u = solver.solve(ahead @ u)
    return np.interp(theta0, theta, u)


@pytest.mark.parametrize("T", [0.5, 3.0])
@pytest.mark.parametrize("g", [root, np.square])
def test_shaped_networks_with_kinks(g, T):
    theta0, c = 2 * pi / 3, 1.7
    coarse, fine = (by_differences(g, theta0, T, c**2 / (2 * pi), n) for n in (600, 1200))
    assert correlation_mean(g, np.cos(theta0), T, 1.0, 1.0 - c) == pytest.approx(
        (4 * fine - coarse) / 3, abs=1e-6
    )


def test_late_times_against_paths():
    """The law crowds at 1, where sqrt(1 - rho^2) has its root: T = 10."""
    V = CovarianceSDE().sample([[1, 0.3], [0.3, 1]], 10.0, 2**13, 0.05)
    V /= np.sqrt(V[:, :1, :1] * V[:, 1:, 1:])
    found = np.sqrt(np.clip(1 - V[:, 0, 1] ** 2, 0, 1))
    assert found.mean() == pytest.approx(
        correlation_mean(root, 0.3, 10.0), abs=4 * found.std() / 2**6.5
    )


def test_jumps_lie_between_ramps():
    h, ramp = 1e-2, lambda a: lambda rho: np.clip((rho - a) / 1e-2, 0, 1)
    late, early = (correlation_mean(ramp(a), 0.1, 0.7) for a in (0.2, 0.2 - h))
    assert late - 1e-3 < correlation_mean(lambda rho: (rho > 0.2) * 1.0, 0.1, 0.7) < early + 1e-3


@pytest.mark.parametrize("c", [0.0, 1e-40, 1e-6, 1.0, 1e4, 1e50])
@pytest.mark.parametrize("T", [0.0, 1e-300, 1e-12, 1.0, 30.0])
@pytest.mark.parametrize("rho0", [-1.0, 0.3, 1 - 1e-16, 1.0])
def test_corners_stay_means(c, T, rho0):
    assert correlation_mean(lambda rho: 3.0, rho0, T, 0.0, -c) == pytest.approx(3, rel=1e-8)
    assert 0 <= correlation_mean(np.square, rho0, T, 0.0, -c) <= 1 + 1e-8


def test_long_times():
    assert correlation_mean(np.square, -1.0, 1000.0, 0.0, -1e-6) == pytest.approx(1, abs=1e-5)


def test_the_start_at_minus_one():
    """It leaves at the speed nu(-1) = c^2 / 2, or not at all."""
    assert correlation_mean(lambda rho: rho, -1.0, 1e-6, 0.0, -2.0) == pytest.approx(
        -1 + 2e-6, abs=1e-9
    )
    assert correlation_mean(lambda rho: rho, -1.0, 5.0, 1.0, 1.0) == -1
