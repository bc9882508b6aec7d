"""The correlation of an unshaped ReLU network near 1: expansion, equation for q, and coefficients.

With gap g = 1 - rho, one layer is, to the printed orders of S3 (4.16),

    mean at infinite width   g - 2 sqrt(2) / (3 pi) g^{3/2} - sqrt(2) / (30 pi) g^{5/2}
    mean, order 1/n          -(-2 g + 4 sqrt(2) / pi g^{3/2} + 3 g^2 - 73 sqrt(2) / (15 pi) g^{5/2})
    noise, order n^{-1/2}    2 sqrt(2) g - 56 / (15 pi) g^{3/2}

Erratum S3.6: the first omitted terms are 9 sqrt(2) / (1680 pi) g^{7/2}, -g^3 / n and, in the noise,
of order g^2. With c = 2 sqrt(2) / (3 pi), q = l^2 g at infinite width, layer l = t n, obeys (4.6):

    dq = (2 q - c q^{3/2}) / t dt,       so       1 / sqrt(q) = c/2 + (1 / sqrt(q_0) - c/2) t_0 / t

which tends to 9 pi^2 / 2.

Coefficients of a Markov chain with step h, S3 (A.6): b_n = E[y - x] / h, a_n = E[(y - x)(y - x)^T]
/ h over steps of at most 1, and P(|y - x| > eps) / h. If they tend to b, a and 0 (A.7), the chain
tends to the diffusion.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from collections.abc import Callable
from math import pi, sqrt
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from orderone.core.covariances import array, numpy
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike, Number, UserInput
from orderone.core.real_arrays import reals
from orderone.core.reals import real
from orderone.theory.limits.shaped_moments import correlations

C_1 = 2 * sqrt(2) / (3 * pi)
# from the state x to draws of the next one, (samples, dimensions)
Step: TypeAlias = Annotated[Callable[[np.ndarray], np.ndarray], UserInput]


class ExpandedStep(NamedTuple):
    """Next correlation: mean + drift / n + noise xi / sqrt(n)."""

    mean: Array
    drift: Array
    noise: Array


class ChainCoefficients(NamedTuple):
    """Coefficients of one step, with standard errors."""

    drift: np.ndarray  # b_n
    drift_error: np.ndarray
    diffusion: np.ndarray  # a_n
    diffusion_error: np.ndarray
    jumps: float  # Delta_n^eps


def expanded_step(rho: ArrayLike) -> ExpandedStep:
    """Return the terms of S3 (4.16) at a correlation near 1."""
    values = correlations(rho)
    gap = 1 - values
    root = np.sqrt(gap)
    mean = values + C_1 * gap * root + sqrt(2) / (30 * pi) * gap**2 * root
    drift = -2 * gap + 4 * sqrt(2) / pi * gap * root + 3 * gap**2
    drift = drift - 73 * sqrt(2) / (15 * pi) * gap**2 * root
    noise = 2 * sqrt(2) * gap - 56 / (15 * pi) * gap * root
    return ExpandedStep(mean, drift, noise)


def infinite_width_q_ode(q0: Number, t0: Number, t: ArrayLike) -> Array:
    """Return q at times t from q(t0) = q0: S3 (4.6), with the constant of the ReLU."""
    start = real(q0, "q0", above=0)
    first = real(t0, "t0", above=0)
    times = reals(t, "t")
    if not (np.isfinite(times) & (times >= first)).all():
        raise InputError(f"t: expected times of at least t0 = {first:g}; got {t!r}", argument="t")
    inverse = C_1 / 2 + (1 / sqrt(start) - C_1 / 2) * first / times
    return 1 / inverse**2


def chain_coefficients(step: Step, x: ArrayLike, h: Number, eps: Number = 0.5) -> ChainCoefficients:
    """Return drift, diffusion and jumps of a chain at the state x: S3 (A.6).

    `step(x)` returns draws of the next state, (samples,) or (samples, dimensions); `h` is the time
    of one step.
    """
    state = np.atleast_1d(numpy(array(x, "x")[0]))
    time = real(h, "h", above=0)
    eps = real(eps, "eps", above=0, most=1)
    if not callable(step):
        message = f"step: expected a function of the state, got {step!r:.60}"
        raise InputError(message, "wrong-type", argument="step")
    draws = np.asarray(step(state), dtype=float)
    if draws.ndim == 1:
        draws = draws[:, None]
    if draws.ndim != 2 or draws.shape[1] != len(state) or len(draws) < 2:
        raise InputError(
            f"step: expected draws of shape (samples, {len(state)}), at least two; got the shape"
            f" {draws.shape}",
            argument="step",
        )
    change = draws - state
    distance = np.linalg.norm(change, axis=1)
    small = np.where((distance <= 1)[:, None], change, 0.0)
    products = small[:, :, None] * small[:, None, :]
    root = len(draws) ** 0.5
    return ChainCoefficients(
        small.mean(0) / time,
        small.std(0, ddof=1) / root / time,
        products.mean(0) / time,
        products.std(0, ddof=1) / root / time,
        float((distance > eps).mean()) / time,
    )
