"""Convergence of networks to their limits, and of integrators to their equations.

    weak order      E g(rho) of the scheme - exact            ~ dt^1 (euler), dt^2 (geometric)
    ODE limit       rms(rho of a network - rho of (3.18))     ~ n^{p - 1/2}      S3 Prop. 3.4
    unshaped SDE    W1(r of a network, r of (4.8))            ~ n^{-1}           S3 Theorem 4.1

In the ODE limit 0 < p < 1/2, and the depth is n^{2p}.

The standard deviation over networks is n^{p - 1/2}. Their mean is off by n^{-p} unless
c_plus + c_minus = 0; for p < 1/4 this is the larger error.
"""

from dataclasses import dataclass

import numpy as np

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Array, Count, Name, Number
from orderone.core.real_arrays import finite
from orderone.core.reals import real
from orderone.measure.fit import Fit, fit_exponent, fit_noisy_exponent
from orderone.measure.limit_comparison import correlations, logs
from orderone.measure.sampler import sample_network
from orderone.theory.limits import (
    CovarianceSDE,
    UnshapedCorrelationSDE,
    correlation_mean,
    correlation_ode,
    wasserstein,
)


@dataclass(frozen=True)
class Trial:
    """Settings in which the error of a scheme is larger than the noise.

    All start at rho = -.9 with c_plus - c_minus = 4.
    """

    order: float
    power: int  # the quantity is E rho^power
    T: float
    steps: tuple[int, ...]
    paths: int


TRIALS = {
    "geometric": Trial(2.0, 2, 0.25, (2, 4, 6), 2**20),
    "euler": Trial(1.0, 1, 0.1, (16, 32, 64), 2**17),
}
RHO0 = -0.9
C = 4.0


@dataclass(frozen=True)
class Convergence:
    """Errors at several sizes, and the exponent of a power law through them."""

    sizes: np.ndarray
    errors: np.ndarray
    fit: Fit
    expected: float

    def __str__(self) -> str:
        return f"error ~ size^{self.fit}; expected {self.expected:+z.2f}"


def weak_order(
    scheme: Name = "geometric",
    steps: Array | None = None,
    paths: Count | None = None,
    seed: Count = 0,
) -> Convergence:
    """Measure the weak order of a scheme, for a mean over the correlation of two inputs.

    The exact mean is a solution of the backward equation. The error must be larger than the noise
    of the mean, and projections of euler steps must be rare. So the time is short, the drift
    strong, the noise antithetic, and points are weighted by their precision. The geometric scheme
    computes E rho^2 at T = 1/4 in 2, 4 and 6 steps (an even number, as two steps are one
    palindrome); euler computes E rho at T = 1/10 in 16, 32 and 64 steps. Pass `steps` for other
    step lengths.
    """
    kind = one_of(scheme, TRIALS, "scheme")
    trial = TRIALS[kind]
    if steps is None:
        steps = [trial.T / number for number in trial.steps]
    if paths is None:
        paths = trial.paths
    sizes = np.sort(finite(steps, "steps", least=3))[::-1]
    number = 2 * (count(paths, "paths", least=4) // 2)
    sde = CovarianceSDE(c_plus=0.0, c_minus=-C)
    V0 = [[1.0, RHO0], [RHO0, 1.0]]
    exact = correlation_mean(lambda rho: rho**trial.power, RHO0, trial.T, 0.0, -C)
    means = []
    for k, dt in enumerate(sizes):
        V = sde.sample(
            V0, trial.T, number, float(dt), count(seed, "seed", least=0) + k, kind, antithetic=True
        )
        pairs = np.nanmean((correlations(V) ** trial.power).reshape(-1, 2), axis=1) - exact
        means.append((pairs.mean(), pairs.std() / len(pairs) ** 0.5))
    errors, noise = np.transpose(means)
    return Convergence(sizes, np.abs(errors), fit_noisy_exponent(sizes, errors, noise), trial.order)


def ode_rate(
    p: Number = 0.25,
    widths: Array = (64, 256, 1024, 4096),
    samples: Count = 512,
    rho0: Number = 0.3,
) -> Convergence:
    """Measure the RMS distance of rho from the ODE at t = 1, for networks of depth n^{2p}."""
    power = real(p, "p", above=0)
    if power >= 0.5:
        message = f"p: expected a number between 0 and 1/2, got {p!r}; at 1/2 the limit is the SDE"
        raise InputError(message, argument="p")
    limit = float(correlation_ode(rho0, 1.0))
    widths = _widths(widths)
    errors = []
    for n in widths:
        V = sample_network(
            "shaped-relu",
            [[1, rho0], [rho0, 1]],
            n,
            max(1, round(n ** (2 * power))),
            samples,
            p=power,
        )
        errors.append(float(np.sqrt(np.mean((correlations(V) - limit) ** 2))))
    return _fitted(widths, errors, power - 0.5)


def unshaped_rate(
    widths: Array = (32, 64, 128, 256), samples: Count = 4096, rho0: Number = 0.3
) -> Convergence:
    """Measure the Wasserstein distance of r at depth = width from the exact solution of (4.8)."""
    widths = _widths(widths)
    limit = UnshapedCorrelationSDE().sample(rho0, 1.0, 2**16, 1e-3, scheme="exact")
    errors = []
    for n in widths:
        r = logs(
            n**2 * (1 - correlations(sample_network("relu", [[1, rho0], [rho0, 1]], n, n, samples)))
        )
        errors.append(wasserstein(r[np.isfinite(r)], limit))
    return _fitted(widths, errors, -1.0)


def _widths(widths: Array) -> list[int]:
    """Return widths as integers, also if they are floats of an array."""
    sizes = []
    for n in finite(widths, "widths", least=3):
        if n == int(n):
            n = int(n)
        sizes.append(count(n, "widths"))
    return sizes


def _fitted(sizes: Array, errors: list[float], expected: float) -> Convergence:
    sizes = finite(sizes, "sizes")
    return Convergence(
        sizes, np.asarray(errors), fit_exponent(sizes, errors, correction=False), expected
    )
