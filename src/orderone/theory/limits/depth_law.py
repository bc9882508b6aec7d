"""Distribution of norms and correlations over initializations, at width n and depth d.

**Norms.** log V_aa of one input has, between initializations, the variance

    ReLU network      5 d / n     M_2 = E [2 relu(g)^2 - 1]^2 = 5                          S3 (4.12)
    shaped, linear    2 d / n     the diagonal of Sigma                                    S3 (2.7)
    residual, beta    [2 + d (4b + 2b^2) / (1+b)^2 + ...] / n                `residual_variance`

with b = beta^2 / 2 the share that one branch adds. For beta = 1 / sqrt(d) this is about 4.7 / n,
for any depth. In the limit log V_aa is normal, and `growth` is the log of the mean of V_aa.

**Correlations** of two inputs follow the limit laws: for ReLU the unshaped SDE (4.8) in its exact
form; for shaped ReLU the SDE (2.7) with its drift rescaled to one unit over the depth; for residual
networks their recursion rho' = (rho + beta^2 J(rho)) / (1 + b), S3 (2.12)-(2.13) with erratum S3.3.

**Other activations** have no limit law here: networks are sampled, with c = 1 / E phi(g)^2, for
which one layer preserves V = 1 on average. In wide layers only some neurons are drawn, around exact
means: `small_networks`. Wide residual networks, whose neurons are not drawn again in each layer,
are sampled at a smaller width instead. To first order in 1 / n the difference from the recursion
V' = V + beta^2 E phi phi of infinite width is proportional to 1 / n in the mean and to 1 / sqrt(n)
in the spread.

**Small networks**, of fewer than 20 layers or 30 neurons, are far from these limits:
`small_networks` samples them directly. Networks that are small in one direction and too large to
sample in the other use the limit laws with a caveat.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from dataclasses import dataclass
from math import log1p, sqrt

import numpy as np
from scipy.special import ndtri

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.theory.activations import Activation, get
from orderone.theory.limits.chain import Q_INFINITY, infinite_width_q
from orderone.theory.limits.covariance_sde import CovarianceSDE
from orderone.theory.limits.relu_moments import K0, K1, K2
from orderone.theory.limits.shaped import PhiInput, ShapedSmooth
from orderone.theory.limits.small_networks import (
    FEW,
    IN_FULL,
    bent,
    can_be_sampled,
    is_small,
    normalized,
    products_mean,
    sampled,
    sampled_wide,
)
from orderone.theory.limits.unshaped import UnshapedCorrelationSDE

ACTIVATIONS = ("relu", "shaped-relu", "linear")  # those with a limit law
PATHS = 4096
STEPS = 100
LEVELS = (np.arange(PATHS) + 0.5) / PATHS  # levels of quantiles that represent a law
LARGEST = 10**15  # bound of depth and width
LARGEST_LOG_V = 300.0  # networks with larger V are not sampled
FEWEST = 20  # smallest number of networks that estimates a law
ROUGH = (
    "the numbers hold for large width and depth; shallow or narrow networks differ from them;"
    " sample_network is exact"
)
ROUNDING = 2e-16
WEAK = 0.1  # beta^2 below which a branch changes a layer little
DEEPEST = 2000  # layers that are computed one by one; deeper networks use laws of large depth


@dataclass(frozen=True, eq=False)
class DepthLaw:
    """Norms and correlation of two inputs of norm one, after the last layer.

    Samples are networks, or paths or quantiles of their limit.
    """

    width: int
    depth: int
    activation: str
    residual: float | None  # factor of the branches
    rho0: float
    growth: float  # log of the factor by which the mean of V_aa grows
    norm_spread: float  # standard deviation of log V_aa
    log_norms: np.ndarray  # samples of log V_aa
    correlations: np.ndarray  # samples of rho
    caveat: str = ""  # says why the numbers are rough, if they are


def depth_law(
    width: Count,
    depth: Count,
    activation: Name = "relu",
    residual: Number | bool | None = None,
    rho0: Number = 0.3,
    *,
    phi: PhiInput = "tanh",
    a: Number = 1.0,
) -> DepthLaw:
    """Return the distribution of norms and correlations after `depth` layers.

    The arguments are those of `depth_report`.
    """
    n = count(width, "width", most=LARGEST)
    d = count(depth, "depth", most=LARGEST)
    rho = real(rho0, "rho0", least=-1, most=1)
    beta = _branch(residual, d)
    kind, function = _activation(activation, d, phi, a)
    if kind not in ACTIVATIONS or (beta is not None and kind != "relu"):
        return _sampled_law(function, kind, beta, n, d, rho)
    if beta is None:
        growth = 0.0
    else:
        growth = d * log1p(beta**2 / 2)
    law = None
    caveat = ""
    if is_small(n, d) and can_be_sampled(n, d) and growth < LARGEST_LOG_V:
        law = _sampled(kind, beta, n, d, rho)
    if law is None:
        law = _limits(kind, beta, n, d, rho, growth)
        caveat = ROUGH if is_small(n, d) else ""
    return DepthLaw(n, d, kind, beta, rho, growth, *law, caveat)


def _activation(activation: Name, d: int, phi: PhiInput, a: Number) -> tuple[str, Activation]:
    """Return the name of an activation, and its function at this depth."""
    if isinstance(activation, str):
        name = activation.lower()
    else:
        name = ""
    if name in ("shaped-smooth", "shaped"):
        shaped = ShapedSmooth(phi, a)
        shaped.check_start()
        return "shaped-smooth", get(shaped.at(d))
    if name == "shaped-relu":
        return name, get(f"leaky-relu({1 - d**-0.5!r})")
    function = get(activation)
    if name in ACTIVATIONS:
        return name, function
    return function.name, function


def _sampled_law(
    phi: Activation, kind: str, beta: float | None, n: int, d: int, rho: float
) -> DepthLaw:
    if d > DEEPEST:
        raise InputError(
            f"depth: expected at most {DEEPEST} layers of {kind}, got {d}; only relu, and without"
            " skip connections shaped-relu and linear, have laws for deeper networks",
            argument="depth",
        )
    if not phi.second_moment(1.0) > 0:
        raise InputError(
            f"activation: expected a function other than 0, got {kind}",
            "dead-network",
            argument="activation",
        )
    with np.errstate(over="ignore", invalid="ignore"):
        whole = n <= FEW or n * d <= IN_FULL
        if beta is not None:
            norms, correlations = sampled(phi, beta, n if whole else FEW, d, rho)
        elif whole:
            norms, correlations = sampled(normalized(phi), None, n, d, rho)
        else:
            norms, correlations = sampled_wide(phi, n, d, rho)
    if norms.size < FEWEST or not np.isfinite([norms, correlations]).all():
        raise InputError(
            f"depth: after {d} layers of {kind} activations are 0 or overflow; use fewer layers, or"
            " another activation",
            "dead-network",
            argument="depth",
        )
    caveat = ""
    if beta is not None and not whole:
        norms, correlations = _at_width(n / FEW, norms, correlations, _infinite(phi, beta, d, rho))
        caveat = f"sampled at width {FEW}, to first order in 1/width"
    growth = float(np.log(np.exp(norms - norms.max()).mean()) + norms.max())
    return DepthLaw(n, d, kind, beta, rho, growth, float(norms.std()), norms, correlations, caveat)


def _infinite(phi: Activation, beta: float, d: int, rho: float) -> tuple[float, float]:
    """Return log V and the correlation of a residual network of infinite width."""
    V = np.array([[1.0], [rho], [1.0]])
    for _ in range(d):
        V = V + beta**2 * products_mean(phi, V)
    return float(np.log(V[0, 0])), float(np.clip(V[1, 0] / V[0, 0], -1, 1))


def _at_width(
    times: float, norms: np.ndarray, correlations: np.ndarray, limit: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Rescale samples to a larger width, `times` theirs; correlations on Fisher's scale."""

    def moved(x: np.ndarray, at: float) -> np.ndarray:
        return at + (x.mean() - at) / times + (x - x.mean()) / sqrt(times)

    fisher = np.arctanh(np.clip([limit[1], *correlations], -1 + ROUNDING, 1 - ROUNDING))
    return moved(norms, limit[0]), np.tanh(moved(fisher[1:], fisher[0]))


def _limits(
    kind: str, beta: float | None, n: int, d: int, rho: float, growth: float
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return spread and samples of log V, and samples of rho, of the limit laws."""
    if beta is not None:
        variance = residual_variance(beta, d)
        correlations = _residual_correlations(beta, n, d, rho)
    else:
        variance = 5 * d if kind == "relu" else 2 * d
        correlations = _correlations(kind, n, d, rho)
    spread = sqrt(variance / n)
    return spread, growth - spread**2 / 2 + spread * ndtri(LEVELS), correlations


def _sampled(
    kind: str, beta: float | None, n: int, d: int, rho: float
) -> tuple[float, np.ndarray, np.ndarray] | None:
    """Return the same from sampled networks; None if too few have activations other than 0."""
    if beta is None:
        minor = {"relu": 0.0, "shaped-relu": 1 - d**-0.5, "linear": 1.0}[kind]
        norms, correlations = sampled(bent(minor), None, n, d, rho)
    else:
        norms, correlations = sampled(_relu, beta, n, d, rho)
    if norms.size < FEWEST:
        return None
    return float(norms.std()), norms, correlations


def _relu(z: np.ndarray) -> np.ndarray:
    return np.maximum(z, 0)


def _branch(residual: Number | bool | None, depth: int) -> float | None:
    if residual is None or residual is False:
        return None
    if residual is True:
        return depth**-0.5
    return real(residual, "residual", above=0, most=1e100)


# --- norms ----------------------------------------------------------------------------------------


def residual_variance(beta: float, depth: int) -> float:
    """Return n Var log V of a residual network.

    The terms are the first layer, the noise of each branch, and the correlation between layers,
    because units tend to stay positive.

    The share of relu(z)^2 in z^2 is 1/2 + sum sign(z) z^2 / (2 sum z^2). Its deviation has
    covariance h(c) / 4n between layers whose z have correlation c = (1 + b)^{-k/2}, where

        h(c) = E sign(x) x^2 sign(y) y^2 = 4 K_2(c) - (1 + 2 c^2)
    """
    beta, depth, times = _coarse(beta, depth)
    b = beta**2 / 2
    share = 2 * b / (1 + b)  # change of log V per deviation of the share, in one layer
    lags = np.arange(depth)
    c = np.exp(-lags * log1p(b) / 2)
    h = 4 * K2(c) - (1 + 2 * c**2)
    pairs = np.where(lags == 0, 1, 2) * (depth - lags)
    branches = depth * (4 * b + 2 * b**2) / (1 + b) ** 2
    return 2 + times * (branches + share**2 / 4 * float(h @ pairs))


def _coarse(beta: float, depth: int) -> tuple[float, int, float]:
    """Return branch factor, layers and repetitions that approximate more layers.

    For weak branches only the sum of beta^2 matters, so fewer and stronger branches do the same.
    With strong branches variances grow in proportion to depth, and correlations have converged.
    """
    ratio = max(1.0, depth / DEEPEST)
    layers = min(depth, DEEPEST)
    if beta**2 * ratio < WEAK:
        return beta * sqrt(ratio), layers, 1.0
    return beta, layers, ratio


# --- correlations ---------------------------------------------------------------------------------


def _correlations(kind: str, n: int, d: int, rho: float) -> np.ndarray:
    T = d / n
    if kind == "relu":
        return _relu_correlations(rho, n, d)
    # (c_+ - c_-)^2 n / d: slopes with sqrt(d) instead of sqrt(n)
    speed = 0.0 if kind == "linear" else 1 / T
    sde = CovarianceSDE(c_plus=0.0, c_minus=-sqrt(speed))
    V = sde.sample([[1, rho], [rho, 1]], T, PATHS, T / STEPS)
    scale = np.sqrt(V[:, 0, 0] * V[:, 1, 1])
    return V[:, 0, 1] / np.where(scale > 0, scale, 1)


def _relu_correlations(rho: float, n: int, d: int) -> np.ndarray:
    """Return samples: the infinite-width recursion times the noise of (4.8) around it."""
    if rho == 1:
        return np.ones(PATHS)
    T = d / n
    r = UnshapedCorrelationSDE().sample(rho, T, PATHS, T / STEPS, scheme="exact")
    around = r - np.log(Q_INFINITY)
    layers = min(d, DEEPEST)
    gap = infinite_width_q(rho, layers)[-1] / layers**2 * (layers / d) ** 2
    return 1 - np.clip(gap * np.exp(around), 0, 2)


def _residual_correlations(beta: float, n: int, d: int, rho: float) -> np.ndarray:
    """Return quantiles of the recursion with linearized noise around it.

    The noise is that of the first layer, and of z w and w w for each branch w.
    """
    beta, d, _ = _coarse(beta, d)
    b = beta**2 / 2
    variance = (1 - rho**2) ** 2 / n
    for _ in range(d):
        J = float(K1(rho))
        slope = (1 + beta**2 * float(K0(rho))) / (1 + b)
        r = 2 * J  # correlation of the two branches
        crossed = 2 * b * (1 - rho**2) * (1 - 2 * J * rho)
        squared = b**2 * ((1 + rho**2) * (1 + r**2) - 4 * rho * r)
        noise = crossed + squared
        variance = variance * slope**2 + noise / n / (1 + b) ** 2
        rho = min(1.0, (rho + beta**2 * J) / (1 + b))
    room = max(1 - rho**2, np.finfo(float).tiny)
    # arctanh(rho), Fisher's scale, is nearer to normal
    fisher = np.arctanh(np.clip(rho, -1 + ROUNDING, 1 - ROUNDING))
    return np.tanh(fisher + sqrt(variance) / room * ndtri(LEVELS))
