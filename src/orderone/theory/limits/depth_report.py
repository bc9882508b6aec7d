"""How deep is too deep: what depth d does to a random network of width n, and what would help.

**Norms.** log V_aa of one input has, between initializations, the variance

    ReLU network       5 d / n          M_2 = E [2 relu(g)^2 - 1]^2 = 5                                  S3 (4.12)
    shaped, linear     2 d / n          the diagonal of Sigma                                             S3 (2.7)
    residual, beta     [2 + d (4b + 2b^2) / (1+b)^2 + ...] / n      `_residual_variance`

with b = beta^2 / 2 the share that one branch adds. For beta = 1 / sqrt(d) this is about 4.7 / n, for any depth.

**Correlations** of two inputs: the limit laws, ReLU by the unshaped SDE (4.8) in its exact form, shaped ReLU by the SDE
(2.7) with its drift speeded up to one unit over the depth, residual networks by their recursion
rho' = (rho + beta^2 J(rho)) / (1 + b), S3 (2.12)-(2.13) with erratum S3.3.

**Other activations** have no limit law here: networks are sampled, with c = 1 / E phi(g)^2, for which V = 1 stays 1 on the
average of one layer. Of wide layers only some neurons are drawn, around means that are exact: `small_networks`. Wide
residual networks, whose neurons are never drawn anew, are sampled at a smaller width instead; to first order in 1 / n
what differs from the recursion V' = V + beta^2 E phi phi of infinite width is proportional to 1 / n in the mean and to
1 / sqrt(n) in the spread.

**Small networks**, of fewer than 20 layers or 30 neurons, are far from these limits: `small_networks` samples them as they
are. The few that are small in one direction and too large to sample in the other get the limit laws and a caveat.

**Regimes.** gaussian: kernels hardly vary, networks are Gaussian processes. lognormal: norms vary by a factor of order one
and the infinite-width picture fails. degenerate: inputs have become one (1 - rho below 1 %, and below a tenth of its
start), or norms vary by factors of e^2 and more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log1p, sqrt
from typing import Any

import numpy as np
from scipy.special import ndtri

from orderone.core.exact import count
from orderone.core.given import Count, Name, Number
from orderone.core.reals import real
from orderone.theory.activations import Activation, get
from orderone.theory.limits.chain import Q_INFINITY, infinite_width_q
from orderone.theory.limits.covariance_sde import CovarianceSDE
from orderone.theory.limits.relu_moments import K0, K1, K2
from orderone.theory.limits.shaped import ShapedSmooth
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

ACTIVATIONS = ("relu", "shaped-relu", "linear")
PATHS, STEPS = 4096, 100
QUANTILES = (0.05, 0.5, 0.95)
GAUSSIAN, DEGENERATE = 0.3, 2.0  # standard deviation of log V below which, and above which
COLLAPSED, LOST = 0.01, 0.1  # median of 1 - rho; as a share of where it started
LARGEST = 10**15  # of depth and width
GROWN = 300.0  # log of V that is still sampled
FEWEST = 20  # networks that tell of a law
ROUGH = "shallow or narrow networks are far from the limits that these numbers come from; sample_network is exact"
EXPLODED = 14.0  # log of how much V grows: activations a thousand times as large
ROUNDING = 2e-16
WEAK = 0.1  # beta^2 of a branch that moves a layer little
DEEPEST = 2000  # layers that are followed one by one; beyond, laws of large depth take over


@dataclass(frozen=True)
class DepthReport:
    width: int
    depth: int
    activation: str
    residual: float | None  # factor of the branches
    rho0: float
    ratio: float  # depth / width
    growth: float  # of the mean of V_aa over the depth, as a factor
    norm_spread: float  # standard deviation of log V_aa between initializations
    correlation: Mapping[float, float]  # quantile -> rho of two inputs that start at rho0
    regime: str  # gaussian | lognormal | degenerate
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]
    caveat: str = ""  # where the numbers are rough

    def __hash__(self) -> int:
        return hash((self.width, self.depth, self.activation, self.residual, self.rho0))

    def __str__(self) -> str:
        low, middle, high = self.correlation.values()
        branch = "" if self.residual is None else f", residual branches x {self.residual:.3g}"
        lines = [
            f"width {self.width}, depth {self.depth}, {self.activation}{branch}: {self.regime}",
            f"  norms: log V varies by +-{self.norm_spread:.2g}, the mean of V grows by {self.growth:.3g}",
            f"  correlation: {self.rho0:g} becomes {middle:.4g} (5 % to 95 %: {low:.4g} to {high:.4g})",
        ]
        lines += [f"  caveat: {self.caveat}"] if self.caveat else []
        return "\n".join(lines + [f"  {r}" for r in self.reasons] + [f"  remedy: {r}" for r in self.remedies])


def depth_report(
    width: Count,
    depth: Count,
    activation: Name = "relu",
    residual: Number | bool | None = None,
    rho0: Number = 0.3,
    *,
    phi: Any = "tanh",
    a: Number = 1.0,
) -> DepthReport:
    """What `depth` layers of this width do to norms and correlations at initialization, and what to change.

    `activation`: relu, shaped-relu (slopes 1 and 1 - 1/sqrt(depth)), shaped-smooth (s phi(x / s) with s = a sqrt(depth)),
    linear, or any other that `theory.activations` knows.
    `residual`: the factor of the branches of a ResNet, S3 (2.12), or True for 1/sqrt(depth). `rho0` is the correlation of
    the two inputs that are followed.
    """
    n, d = count(width, "width", most=LARGEST), count(depth, "depth", most=LARGEST)
    rho, beta = real(rho0, "rho0", least=-1, most=1), _branch(residual, d)
    kind, function = _activation(activation, d, phi, a)
    if kind not in ACTIVATIONS or (beta is not None and kind != "relu"):
        return _of_samples(function, kind, beta, n, d, rho)
    growth = 0.0 if beta is None else d * log1p(beta**2 / 2)
    exact = _sampled(kind, beta, n, d, rho) if is_small(n, d) and can_be_sampled(n, d) and growth < GROWN else None
    spread, quantiles = exact or _limits(kind, beta, n, d, rho)
    caveat = ROUGH if is_small(n, d) and exact is None else ""
    return _report(n, d, kind, beta, rho, growth, spread, quantiles, caveat)


def _activation(given: Name, d: int, phi: Any, a: Number) -> tuple[str, Activation]:
    """Its name, and the function that it is at this depth."""
    known = given.lower() if isinstance(given, str) else given
    if known in ("shaped-smooth", "shaped"):
        shaped = ShapedSmooth(phi, a)
        shaped.check_start()
        return "shaped-smooth", get(shaped.at(d))
    function = get(f"leaky-relu({1 - d**-0.5!r})" if known == "shaped-relu" else given)
    return (known if known in ACTIVATIONS else function.name), function


def _of_samples(phi: Activation, kind: str, beta: float | None, n: int, d: int, rho: float) -> DepthReport:
    if d > DEEPEST or not phi.second_moment(1.0) > 0:
        raise ValueError(
            f"depth: expected at most {DEEPEST} layers of {kind}, which must not be zero; got {d}; "
            "networks of relu, and without skip connections of shaped-relu and linear, may be deeper"
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
        raise ValueError(f"depth: expected networks that live, but {d} layers of {kind} die or overflow")
    caveat = ""
    if beta is not None and not whole:
        norms, correlations = _at_width(n / FEW, norms, correlations, _infinite(phi, beta, d, rho))
        caveat = f"sampled at width {FEW}, to first order in 1/width"
    growth = float(np.log(np.exp(norms - norms.max()).mean()) + norms.max())
    quantiles = np.quantile(correlations, QUANTILES)
    return _report(n, d, kind, beta, rho, growth, float(norms.std()), quantiles, caveat)


def _infinite(phi: Activation, beta: float, d: int, rho: float) -> tuple[float, float]:
    """log V and the correlation of a residual network of infinite width."""
    V = np.array([[1.0], [rho], [1.0]])
    for _ in range(d):
        V = V + beta**2 * products_mean(phi, V)
    return float(np.log(V[0, 0])), float(np.clip(V[1, 0] / V[0, 0], -1, 1))


def _at_width(
    times: float, norms: np.ndarray, correlations: np.ndarray, limit: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Samples moved to a width that is larger by a factor; correlations on Fisher's scale."""

    def moved(x: np.ndarray, at: float) -> np.ndarray:
        return at + (x.mean() - at) / times + (x - x.mean()) / sqrt(times)

    fisher = np.arctanh(np.clip([limit[1], *correlations], -1 + ROUNDING, 1 - ROUNDING))
    return moved(norms, limit[0]), np.tanh(moved(fisher[1:], fisher[0]))


def _report(
    n: int, d: int, kind: str, beta: float | None, rho: float, growth: float, spread: float, quantiles: np.ndarray,
    caveat: str,
) -> DepthReport:  # fmt: skip
    gap = 1 - float(quantiles[1])
    reasons = _reasons(spread, gap, growth, rho)
    regime = "degenerate" if reasons else "gaussian" if spread < GAUSSIAN else "lognormal"
    table = dict(zip(QUANTILES, map(float, quantiles), strict=True))
    remedies = _remedies(n, d, kind, beta, regime)
    factor = exp(min(growth, 700.0))
    return DepthReport(n, d, kind, beta, rho, d / n, factor, spread, table, regime, reasons, remedies, caveat)


def _limits(kind: str, beta: float | None, n: int, d: int, rho: float) -> tuple[float, np.ndarray]:
    """Spread of log V and quantiles of rho by the laws of large depth and width."""
    if beta is None:
        return sqrt((5 if kind == "relu" else 2) * d / n), _correlations(kind, n, d, rho)
    return sqrt(_residual_variance(beta, d) / n), _residual_quantiles(beta, n, d, rho)


def _sampled(kind: str, beta: float | None, n: int, d: int, rho: float) -> tuple[float, np.ndarray] | None:
    """The same from networks; nothing where too few of them live."""
    minor = {"relu": 0.0, "shaped-relu": 1 - d**-0.5, "linear": 1.0}[kind]
    phi = bent(minor) if beta is None else lambda z: np.maximum(z, 0)
    norms, correlations = sampled(phi, beta, n, d, rho)
    return (float(norms.std()), np.quantile(correlations, QUANTILES)) if norms.size >= FEWEST else None


def _branch(residual: Number | bool | None, depth: int) -> float | None:
    if residual is None or residual is False:
        return None
    return depth**-0.5 if residual is True else real(residual, "residual", above=0, most=1e100)


# --- norms ----------------------------------------------------------------------------------------------------------


def _residual_variance(beta: float, depth: int) -> float:
    """n Var log V: the first layer, the noise of each branch, and units that stay positive from layer to layer.

    The share of relu(z)^2 in z^2 is 1/2 + sum sign(z) z^2 / (2 sum z^2). Its deviation has covariance h(c) / 4n between
    layers whose z have correlation c = (1 + b)^{-k/2}, where h(c) = E sign(x) x^2 sign(y) y^2 = 4 K_2(c) - (1 + 2 c^2).
    """
    beta, depth, times = _coarse(beta, depth)
    b = beta**2 / 2
    share = 2 * b / (1 + b)  # what a deviation of the share does to log V in one layer
    lags = np.arange(depth)
    c = np.exp(-lags * log1p(b) / 2)
    h = 4 * K2(c) - (1 + 2 * c**2)
    pairs = np.where(lags == 0, 1, 2) * (depth - lags)
    return 2 + times * (depth * (4 * b + 2 * b**2) / (1 + b) ** 2 + share**2 / 4 * float(h @ pairs))


def _coarse(beta: float, depth: int) -> tuple[float, int, float]:
    """Branch, layers and repetitions that do the same as many layers.

    Of weak branches only the sum of beta^2 matters, so fewer may be stronger; with strong ones variances grow in
    proportion to depth, and correlations have long arrived.
    """
    ratio = max(1.0, depth / DEEPEST)
    weak = beta**2 * ratio < WEAK
    return (beta * sqrt(ratio), min(depth, DEEPEST), 1.0) if weak else (beta, min(depth, DEEPEST), ratio)


# --- correlations ---------------------------------------------------------------------------------------------------


def _correlations(kind: str, n: int, d: int, rho: float) -> np.ndarray:
    T = d / n
    if kind == "relu":
        return _relu_quantiles(rho, n, d)
    speed = {"linear": 0.0, "shaped-relu": 1 / T}[kind]  # (c_+ - c_-)^2 n / d: slopes with sqrt(d) instead of sqrt(n)
    sde = CovarianceSDE(c_plus=0.0, c_minus=-sqrt(speed))
    V = sde.sample([[1, rho], [rho, 1]], T, PATHS, T / STEPS)
    scale = np.sqrt(V[:, 0, 0] * V[:, 1, 1])
    return np.quantile(V[:, 0, 1] / np.where(scale > 0, scale, 1), QUANTILES)


def _relu_quantiles(rho: float, n: int, d: int) -> np.ndarray:
    """(4.8) tells how networks spread around the infinite-width recursion, which carries the early layers."""
    if rho == 1:
        return np.ones(3)
    T = d / n
    around = UnshapedCorrelationSDE().sample(rho, T, PATHS, T / STEPS, scheme="exact") - np.log(Q_INFINITY)
    layers = min(d, DEEPEST)
    gap = infinite_width_q(rho, layers)[-1] / layers**2 * (layers / d) ** 2
    return 1 - np.clip(gap * np.exp(np.quantile(around, [1 - q for q in QUANTILES])), 0, 2)


def _residual_quantiles(beta: float, n: int, d: int, rho: float) -> np.ndarray:
    """The recursion, and linear noise around it: the first layer's, then z w and w w of each branch w."""
    beta, d, _ = _coarse(beta, d)
    b, variance = beta**2 / 2, (1 - rho**2) ** 2 / n
    for _ in range(d):
        J, slope = float(K1(rho)), (1 + beta**2 * float(K0(rho))) / (1 + b)
        r = 2 * J  # correlation of the two branches
        noise = 2 * b * (1 - rho**2) * (1 - 2 * J * rho) + b**2 * ((1 + rho**2) * (1 + r**2) - 4 * rho * r)
        variance = variance * slope**2 + noise / n / (1 + b) ** 2
        rho = min(1.0, (rho + beta**2 * J) / (1 + b))
    room = max(1 - rho**2, np.finfo(float).tiny)  # arctanh(rho), Fisher's scale, is nearer to normal
    return np.tanh(np.arctanh(np.clip(rho, -1 + ROUNDING, 1 - ROUNDING)) + sqrt(variance) / room * ndtri(QUANTILES))


# --- verdict --------------------------------------------------------------------------------------------------------


def _reasons(spread: float, gap: float, growth: float, rho: float) -> tuple[str, ...]:
    found = []
    if gap < min(COLLAPSED, LOST * (1 - rho)):
        found.append(f"all inputs look alike: the median of 1 - rho is {gap:.2g}")
    if spread > DEGENERATE:
        found.append(f"norms of two initializations differ by a factor of e^{spread:.2g}")
    if growth > EXPLODED:
        found.append(f"activations grow by e^{growth / 2:.3g}")
    return tuple(found)


def _remedies(n: int, d: int, kind: str, beta: float | None, regime: str) -> tuple[str, ...]:
    if regime == "gaussian":
        return ()
    scale = f"{d**-0.5:.3g} = 1/sqrt(depth)"  # at depth 1 that is no change, nor is shaping
    wide = int(np.ceil((2 * d if beta is None else _residual_variance(d**-0.5, d)) / GAUSSIAN**2))
    if beta is not None:
        strong = beta > 1.5 * d**-0.5
        if strong:
            return (f"scale residual branches by {scale}",)
        return (f"take a width of {wide} or more",) if wide > n else ()
    remedies = []
    if kind == "relu" and d > 1:
        remedies.append(f"shape the activation: slopes 1 and {1 - d**-0.5:.3g} (shape_activations(model, depth={d}))")
    elif kind not in (*ACTIVATIONS, "shaped-smooth") and d > 1:
        remedies.append(f"shape the activation (shape_activations(model, depth={d}))")
    remedies.append(
        f"add skip connections with branches scaled by {scale}: norms then vary by O(1/sqrt(width)) at any depth"
    )
    if d > n * GAUSSIAN**2 / 2:
        left = f"shaping leaves log V varying by +-{sqrt(2 * d / n):.2g}"
        remedies.append(f"{left}; a width of {wide} would keep it below {GAUSSIAN}")
    return tuple(remedies)
