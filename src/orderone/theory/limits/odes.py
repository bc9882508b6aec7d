"""Limits without noise: covariances as solutions of ordinary differential equations.

    shaped network, depth d ~ n^{2p}     dV_ab/dt = nu(rho_ab) sqrt(V_aa V_bb)             S3 (3.18)
    residual network, 1 / sqrt(d)        dV_ab/dt = J(rho_ab) sqrt(V_aa V_bb)              S3 (2.13)
    correlations of both                 drho/dt  = nu(rho) = k f_1(arccos rho)

with 0 < p < 1/2 in the first and branches scaled by 1 / sqrt(d) in the second. t = layer / d;
k = (c_+ - c_-)^2 / (2 pi), 1 / (2 pi) for the residual network;
J(rho) = K_1(rho) = nu(rho) + rho / 2.

Erratum S3.3: (2.14) equates the two drifts, but the residual covariance grows by e^{t/2}; only
correlations coincide. Erratum S3.5: Proposition 3.4 is about layer t n^{2p}, not t n. Erratum
S3.10: V of (2.13) is that of pre-activations.

The diagonal is known, so one scalar equation remains for each pair. It is solved for
s = sqrt((1 - rho) / 2),

    ds/dt = -k f_1(theta) / (4 s),   s = sin(theta / 2),

which is smooth at rho = 1, where 1 - rho decays as t^{-2}, and bounded at rho = -1.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

import numpy as np
from scipy.integrate import solve_ivp

from orderone.core.covariances import correlation, covariance, like, numpy
from orderone.core.inputs import Array, ArrayLike, Number
from orderone.core.real_arrays import reals
from orderone.theory.limits.relu_moments import f1
from orderone.theory.limits.shaped import ShapedReLU

ACCURACY = 1e-11


def covariance_ode(
    V0: ArrayLike, t: ArrayLike, c_plus: Number = 0.0, c_minus: Number = -1.0
) -> Array:
    """Return the covariance of a shaped ReLU network of infinite width, at t = layer / n^{2p}.

    `V0` is the covariance at t = 0. The result is (m, m) if `t` is a number, and (times, m, m), in
    the order of `t`, if it is a list or an array.
    """
    start, _ = covariance(V0)
    V = numpy(start).astype(np.float64)
    times = reals(t, "t", least=0, most=1e12)
    variance = np.clip(np.diagonal(V), 0, None)
    norm = np.sqrt(variance)
    moved = _correlations(V, times, ShapedReLU(c_plus, c_minus)) * np.outer(norm, norm)
    moved[..., range(len(V)), range(len(V))] = variance
    return like(moved, start)


def resnet_ode(V0: ArrayLike, t: ArrayLike) -> Array:
    """Return the covariance of pre-activations of a residual ReLU network, at t = layer / depth.

    Branches are scaled by 1 / sqrt(depth). The result is (m, m) if `t` is a number, and
    (times, m, m), in the order of `t`, if it is a list or an array.
    """
    start, _ = covariance(V0)
    times = reals(t, "t", least=0, most=1400)  # e^{t / 2} overflows beyond
    shaped = covariance_ode(numpy(start).astype(np.float64), times)
    return like(np.exp(times / 2)[..., None, None] * shaped, start)


def correlation_ode(
    rho0: ArrayLike, t: ArrayLike, c_plus: Number = 0.0, c_minus: Number = -1.0
) -> np.ndarray:
    """Solve drho/dt = nu(rho); return rho at the times `t`, of shape t.shape + rho0.shape."""
    rho = reals(rho0, "rho0", least=-1, most=1)
    times = reals(t, "t", least=0, most=1e12)
    s = _solve(np.sqrt((1 - rho.ravel()) / 2), times.ravel(), ShapedReLU(c_plus, c_minus).drift)
    return (1 - 2 * s**2).reshape(times.shape + rho.shape)


def _correlations(V: np.ndarray, times: np.ndarray, shaped: ShapedReLU) -> np.ndarray:
    """Return correlations, t.shape + (m, m)."""
    rho = correlation(V)
    rows, columns = np.tril_indices(len(V), -1)
    moved = np.broadcast_to(rho, (*times.shape, *rho.shape)).copy()
    if len(rows):
        pairs = correlation_ode(rho[rows, columns], times, shaped.c_plus, shaped.c_minus)
        moved[..., rows, columns] = pairs
        moved[..., columns, rows] = pairs
    return moved


def _solve(s0: np.ndarray, times: np.ndarray, k: float) -> np.ndarray:
    """Return s, (times, pairs), solved in the time k t: the equation is autonomous."""
    # the solver needs every time once, in order
    clock, place = np.unique(k * times, return_inverse=True)
    path = np.repeat(s0[None], len(clock), axis=0)
    if clock[-1] > 0 and np.any(s0 > 0):
        moving = s0 > 0
        solution = solve_ivp(
            _slope, (0, clock[-1]), s0[moving], "DOP853", clock, rtol=ACCURACY, atol=1e-16
        )
        path[:, moving] = solution.y.T
    return np.clip(path, 0, 1)[place.ravel()]


def _slope(_: float, s: np.ndarray) -> np.ndarray:
    s = np.clip(s, np.finfo(float).tiny, 1)
    return -f1(2 * np.arcsin(s)) / (4 * s)
