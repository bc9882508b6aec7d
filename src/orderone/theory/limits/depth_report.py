"""Verdict on the depth of a random network: how deep is too deep at width n, and what to change.

`depth_law` computes the numbers; this module judges them. The regimes are

    gaussian      kernels hardly vary between initializations: networks are Gaussian processes
    lognormal     norms vary by a factor of order one: infinite width is a bad approximation
    degenerate    all inputs look alike (1 - rho below 1 %, and below a tenth of its start), or
                  norms vary by factors of e^2 and more

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from orderone.core.inputs import Count, Name, Number
from orderone.theory.limits.depth_law import ACTIVATIONS, DepthLaw, depth_law, residual_variance
from orderone.theory.limits.shaped import PhiInput

QUANTILES = (0.05, 0.5, 0.95)
GAUSSIAN = 0.3  # standard deviation of log V below which a network is Gaussian
DEGENERATE = 2.0  # and above which it is degenerate
COLLAPSED = 0.01  # median of 1 - rho below which inputs look alike
LOST = 0.1  # the same as a share of its start
EXPLODED = 14.0  # log of the growth of V: activations a thousand times as large


@dataclass(frozen=True)
class DepthReport:
    """Norms and correlations after the last layer, a verdict, and remedies."""

    width: int
    depth: int
    activation: str
    residual: float | None  # factor of the branches
    rho0: float
    ratio: float  # depth / width
    growth: float  # factor by which the mean of V_aa grows over the depth
    norm_spread: float  # standard deviation of log V_aa between initializations
    correlation: Mapping[float, float]  # quantile -> rho of two inputs that start at rho0
    regime: str  # gaussian | lognormal | degenerate
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]
    caveat: str = ""  # says why the numbers are rough, if they are

    def __hash__(self) -> int:
        return hash((self.width, self.depth, self.activation, self.residual, self.rho0))

    def __str__(self) -> str:
        low, middle, high = self.correlation.values()
        branch = ""
        if self.residual is not None:
            branch = f", residual branches x {self.residual:.3g}"
        lines = [
            f"width {self.width}, depth {self.depth}, {self.activation}{branch}: {self.regime}",
            (
                f"  norms: log V (V: mean square of a layer) varies by +-{self.norm_spread:.2g}"
                f" between initializations; the mean of V is multiplied by {self.growth:.3g}"
            ),
            (
                f"  correlation: {self.rho0:g} becomes {middle:.4g} (5 % to 95 %: {low:.4g} to"
                f" {high:.4g})"
            ),
        ]
        if self.caveat:
            lines.append(f"  caveat: {self.caveat}")
        for reason in self.reasons:
            lines.append(f"  {reason}")
        for remedy in self.remedies:
            lines.append(f"  remedy: {remedy}")
        return "\n".join(lines)


def depth_report(
    width: Count,
    depth: Count,
    activation: Name = "relu",
    residual: Number | bool | None = None,
    rho0: Number = 0.3,
    *,
    phi: PhiInput = "tanh",
    a: Number = 1.0,
) -> DepthReport:
    """Report the effect of depth on norms and correlations at initialization, with remedies.

    `activation` is relu, shaped-relu (slopes 1 and 1 - 1/sqrt(depth)), shaped-smooth (s phi(x / s)
    with s = a sqrt(depth)), linear, or any other name or function that `theory.activations`
    accepts. `residual` is the factor of the branches of a ResNet, S3 (2.12), or True for
    1/sqrt(depth). `rho0` is the correlation of the two inputs at the start.
    """
    return judged(depth_law(width, depth, activation, residual, rho0, phi=phi, a=a))


def judged(law: DepthLaw) -> DepthReport:
    """Return the law in three quantiles, with a verdict and remedies."""
    quantiles = np.quantile(law.correlations, QUANTILES)
    reasons = _reasons(law.norm_spread, 1 - float(quantiles[1]), law.growth, law.rho0)
    if reasons:
        regime = "degenerate"
    elif law.norm_spread < GAUSSIAN:
        regime = "gaussian"
    else:
        regime = "lognormal"
    return DepthReport(
        width=law.width,
        depth=law.depth,
        activation=law.activation,
        residual=law.residual,
        rho0=law.rho0,
        ratio=law.depth / law.width,
        growth=exp(min(law.growth, 700.0)),
        norm_spread=law.norm_spread,
        correlation=dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
        regime=regime,
        reasons=reasons,
        remedies=_remedies(law.width, law.depth, law.activation, law.residual, regime),
        caveat=law.caveat,
    )


def _reasons(spread: float, gap: float, growth: float, rho: float) -> tuple[str, ...]:
    reasons = []
    if gap < min(COLLAPSED, LOST * (1 - rho)):
        reasons.append(f"all inputs look alike: the median of 1 - rho is {gap:.2g}")
    if spread > DEGENERATE:
        reasons.append(f"norms vary between initializations by a factor of e^{spread:.2g}")
    if growth > EXPLODED:
        reasons.append(f"activations grow by e^{growth / 2:.3g}")
    return tuple(reasons)


def _remedies(n: int, d: int, kind: str, beta: float | None, regime: str) -> tuple[str, ...]:
    if regime == "gaussian":
        return ()
    scale = f"{d**-0.5:.3g} = 1/sqrt(depth)"  # no change at depth 1
    if beta is not None:
        if beta > 1.5 * d**-0.5:
            return (f"scale residual branches by {scale}",)
        wide = int(np.ceil(residual_variance(d**-0.5, d) / GAUSSIAN**2))
        if wide > n:
            return (f"use a width of {wide} or more",)
        return ()
    wide = int(np.ceil(2 * d / GAUSSIAN**2))
    remedies = []
    if kind == "relu" and d > 1:
        remedies.append(
            f"shape the activation: slopes 1 and {1 - d**-0.5:.3g} (shape_activations(model,"
            f" depth={d}))"
        )
    elif kind not in (*ACTIVATIONS, "shaped-smooth") and d > 1:
        remedies.append(f"shape the activation (shape_activations(model, depth={d}))")
    remedies.append(
        f"add skip connections with branches scaled by {scale}: norms then vary by O(1/sqrt(width))"
        " at any depth"
    )
    if d > n * GAUSSIAN**2 / 2:
        left = f"after shaping log V still varies by +-{sqrt(2 * d / n):.2g}"
        remedies.append(f"{left}; a width of {wide} would keep it below {GAUSSIAN}")
    return tuple(remedies)
