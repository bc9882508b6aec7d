"""Decay of gradients with the distance k = L - l from the output, and where noise dominates.

    g_aa^l = g_aa^L chi_1^k [1 + (1/keep) sum_{j=1..k} (lambda^2 / chi_1)^j]
    g_ab^l = g_ab^L chi_2^k [1 + sum_{j=1..k} (lambda^2 / chi_2)^j]

at the fixed point, for the loss sum_i phi(z^L_i)^2. lambda is the slope dq'/dq of the length map.
(9) and (11) of S1 are the first terms. The sums arise because the loss depends on the weights
through which its gradient flows back (erratum S1.5): by Stein's lemma a part of delta^l stays
aligned with the signal, weight_var x_j E[d delta_i / d z_i], and that mean shrinks by lambda in
each layer. With
psi = phi phi', v_k = E delta_a^2, u_k = E delta_a delta_b at distance k, and the masks of S1 (7),

    v_k = chi_1 v_{k-1} + (4 / keep) lambda^(2k) E psi^2,        v_0 = 4 E psi^2
    u_k = chi_2 u_{k-1} + 4 lambda^(2k) E psi_a psi_b,           u_0 = 4 E psi_a psi_b

Far from the output the larger rate dominates: max(chi_1, lambda^2), max(chi_2, lambda^2). In linear
networks lambda = chi_1, and this is (12) at the fixed point (`gradients`).

Erratum S1.4: (13) of the paper, chi_1 for g_ab too, is wrong. The noise of one network falls as
chi_1^k,

    std(g_ab^l) = level N^(-1/2) g_aa^l

The paper averages abs(g_ab), so the noise shows beyond the depth where the two curves cross. If
both are exponentials, they cross at

    k = ln(sqrt(N) r / level) / ln(chi_1 / chi_2),        r = g_ab^L / g_aa^L

r and level follow from the network (`gradient_overlaps`). For linear networks r is keep c*^2, and
level tends to c* keep / sqrt(1 - keep^2). Both vanish if c* = 0: means and noise of this order do.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.inputs import Array, Count, Number, UserInput
from orderone.core.reals import real
from orderone.theory.gaussian import expect
from orderone.theory.meanfield.gradient_overlaps import GradientOverlaps, gradient_overlaps
from orderone.theory.meanfield.lengths import length_slope
from orderone.theory.meanfield.mean_field import MeanField
from orderone.theory.meanfield.roots import bracketed

FARTHEST = 1e12  # layers

Network: TypeAlias = Annotated[MeanField, UserInput]


@dataclass(frozen=True)
class GradientLaw:
    """Gradient metrics relative to g_aa of the last layer; entry l - 1 is layer l."""

    g_aa: np.ndarray
    g_ab: np.ndarray  # its mean, with the sign
    # standard deviation of g_ab over networks, where abs(g_ab) levels off; near the output,
    # fluctuations of the signals add to it
    noise: np.ndarray
    crossover: float  # distance from the output at which noise equals the mean; inf if nowhere
    scale: float  # g_aa of the last layer itself, for the loss sum_i phi(z_i)^2: (9) and (11)


def gradient_law(
    network: Network,
    depth: Count,
    width: Count,
    ratio: Number | None = None,
    level: Number | None = None,
) -> GradientLaw:
    """Return means and noise of the gradient metrics of layers 1 to `depth` at finite width.

    `ratio` is g_ab / g_aa at the last layer, and `level` is sqrt(width) std(g_ab) / g_aa far from
    it. By default both are those of the network, and the level depends on the layer.
    """
    network = instance(network, MeanField, "network", "pass MeanField(...)")
    depth = count(depth, "depth")
    width = count(width, "width")
    squares, overlaps = _decays(network)
    noise = _noise(network, width, level)
    if ratio is None:
        ratio = _overlaps(network).ratio(_keep(network))
    else:
        ratio = real(ratio, "ratio", above=0)
    k = np.arange(depth - 1, -1, -1.0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        g_aa = np.exp(squares.log(k))
        g_ab = ratio * np.exp(overlaps.log(k))
        crossover = _crossing(squares, overlaps, ratio, noise)
        return GradientLaw(g_aa, g_ab, noise(k) * g_aa, crossover, _last_layer(network))


def _noise(network: MeanField, width: int, level: Number | None) -> Callable[[Array], Array]:
    """Return std(g_ab) / g_aa as a function of the distance from the output."""
    root = math.sqrt(width)
    if level is not None:
        floor = real(level, "level", above=0) / root
        return lambda k: floor + 0 * k
    overlaps = _overlaps(network)
    keep = _keep(network)
    return lambda k: overlaps.noise(keep, k) / root


def _overlaps(network: MeanField) -> GradientOverlaps:
    return gradient_overlaps(
        network.phi,
        float(network.q_star),
        float(network.gap_star),
        float(network.chi1),
        float(network.chi2),
    )


def _last_layer(network: MeanField) -> float:
    """Return g_aa^L = (4 / keep) E[phi^2] E[(phi phi')^2] at the fixed point."""
    phi = network.phi
    q = float(network.q_star)
    if not np.isfinite(q):
        return math.inf
    root = math.sqrt(q)

    def output(z: np.ndarray) -> np.ndarray:
        x = root * z
        return (np.asarray(phi(x)) * np.asarray(phi.derivative(x))) ** 2

    return 4 / _keep(network) * float(phi.second_moment(q)) * float(expect(output).value)


def _keep(network: MeanField) -> float:
    return float(network.one()[2])


class _Decay(NamedTuple):
    """Decay chi^k + weight sum_{j=1..k} chi^(k-j) aligned^j, for any real k."""

    chi: float
    aligned: float
    weight: float

    @property
    def rate(self) -> float:
        """Return the rate far from the output."""
        return max(self.chi, self.aligned)

    def log(self, k: Array) -> Array:
        """Return the logarithm at distance k, with the larger of the two rates in front."""
        if self.rate == 0:
            return np.where(k == 0, 0.0, -math.inf)
        if not self.rate < math.inf:
            return np.where(k == 0, 0.0, math.inf)
        first = self.chi / self.rate
        second = self.aligned / self.rate
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            if abs(first - second) < 1e-9:
                total = k * first**k
            else:
                total = second * (first**k - second**k) / (first - second)
            return k * math.log(self.rate) + np.log(first**k + self.weight * total)


def _decays(network: MeanField) -> tuple[_Decay, _Decay]:
    """Return the decays of g_aa and of g_ab."""
    weight_var, _, keep = network.one()
    chi1 = float(network.chi1)
    chi2 = float(network.chi2)
    rate = np.array([weight_var / keep])
    slope = float(length_slope(network.phi, rate, np.array([network.q_star]))[0])
    return _Decay(chi1, slope**2, 1 / float(keep)), _Decay(chi2, slope**2, 1.0)


def _crossing(
    squares: _Decay, overlaps: _Decay, ratio: float, noise: Callable[[Array], Array]
) -> float:
    """Return the distance at which overlaps fall to the noise; inf if they never do."""
    if not ratio > noise(np.zeros(1))[0] or overlaps.rate == 0:
        return 0.0
    if not squares.rate < math.inf:
        return math.inf

    def left(k: float) -> float:
        floor = float(noise(np.array([k]))[0])
        if floor == 0:
            return math.inf
        return float(math.log(ratio / floor) + overlaps.log(k) - squares.log(k))

    far = 1.0
    while left(far) > 0 and far < FARTHEST:
        far *= 2
    if left(far) > 0:
        return math.inf
    crossing = bracketed(lambda k, _: np.array([left(k[0])]), np.zeros(1), np.array([far]))
    return float(crossing[0])


def crossover_depth(
    chi1: Number, chi2: Number, width: Count, ratio: Number, level: Number
) -> float:
    """Return the distance from the output where noise of g_ab exceeds its mean: erratum S1.4.

    It is that of two exponentials. `gradient_law` has `ratio` and `level` of a network.
    """
    chi1 = real(chi1, "chi1", above=0)
    chi2 = real(chi2, "chi2", least=0)
    ratio = real(ratio, "ratio", above=0)
    level = real(level, "level", above=0)
    log_ratio = math.log(math.sqrt(count(width, "width")) * ratio / level)
    if log_ratio <= 0 or chi2 == 0:
        return 0.0
    if chi1 > chi2:
        return log_ratio / math.log(chi1 / chi2)
    return math.inf
