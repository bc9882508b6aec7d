"""Mean and covariance of the logit gradient h' = softmax(h) - y of V independent Gaussian logits.

    E[h']      = 1/V - y                                                        S0 Lemma D.1
    Cov(h')    = v on the diagonal, -v / (V - 1) beside it
    Cov(h')   ~= s ((1/V^2) I - (1/V^3) 1 1^T)        to first order in the variance s of a logit
    E[|h'|^2]  = V v + 1 - 1/V

The rows of Cov add up to 0, because the entries of a softmax add up to 1; by symmetry this leaves
one number v = E[p_1^2] - 1/V^2. With 1 / Z^2 = integral of t exp(-t Z) dt over t > 0,

    E[p_1^2] = integral of t E[exp(2 h - t e^h)] E[exp(-t e^h)]^(V - 1) dt

Erratum S0.2: S0 (4) and (5) need E[|h'|^2], and not the variance of a sum of h'.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from typing import NamedTuple

import numpy as np

from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.theory.gaussian.panels import density

REACH = 9.0  # standard deviations of a logit
STEP = 0.25  # of trapezoidal rules: the integrand is analytic within pi / 2 of the real line
LARGEST = 1000.0  # variance of logits, which a rule resolves in little time


class LogitGradient(NamedTuple):
    """Moments of the logit gradient; entries of its covariance are equal by symmetry."""

    mean_true: float  # of the entry of the true class, 1/V - 1
    mean_other: float  # of another entry, 1/V
    variance: float  # of an entry
    covariance: float  # of two entries
    first_order_variance: float  # the approximation of S0 Lemma D.1
    first_order_covariance: float
    square: float  # E[|h'|^2]


def logit_gradient(vocab: Count, logit_var: Number) -> LogitGradient:
    """Return the moments for `vocab` independent logits of variance `logit_var`."""
    V = count(vocab, "vocab", least=2)
    s = real(logit_var, "logit_var", least=0, most=LARGEST)
    variance = max(_mean_square(V, s) - 1 / V**2, 0.0)
    return LogitGradient(
        mean_true=1 / V - 1,
        mean_other=1 / V,
        variance=variance,
        covariance=-variance / (V - 1),
        first_order_variance=s * (1 / V**2 - 1 / V**3),
        first_order_covariance=-s / V**3,
        square=V * variance + 1 - 1 / V,
    )


def _mean_square(V: int, s: float) -> float:
    """Return E[p_1^2]."""
    if s == 0:
        return 1 / V**2
    root = float(np.sqrt(s))
    z = np.linspace(-REACH, REACH, 40 + 2 * round(REACH * root / STEP))
    weight = density(z)
    weight = weight / weight.sum()
    h = root * z
    # in u = log t the integrand is smooth, and negligible beyond these ends
    u = np.arange(-np.log(V) - h[-1] - 20, -h[0] + 6, STEP)
    exponent = u[:, None] + h
    decay = np.exp(-np.exp(np.minimum(exponent, 7.0)))
    laplace = decay @ weight
    second = (decay * np.exp(2 * np.minimum(exponent, 7.0))) @ weight
    others = np.exp((V - 1) * np.log(np.maximum(laplace, 1e-300)))
    return float(STEP * (second * others).sum())
