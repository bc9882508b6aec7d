"""How gradients decay with the distance k = L - l from the output, for any activation, and where the noise takes over.

    g_aa^l ~ chi_1^k,      g_ab^l ~ max(chi_2, lambda^2)^k                                           S1 (9), (11)

lambda is the slope dq'/dq of the length map. Erratum S1.5: the loss depends on the weights that carry its gradient back,
so that a part of the gradient stays aligned with the signal; by Stein's lemma it shrinks by lambda a layer, which is
(weight_var / keep) dE phi^2 / dq, and g_ab with its square. In linear networks lambda = chi_1, and that part wins if
weight_var > keep^2. There the sums of both parts are known (`gradients`), and are taken at the fixed point,

    g_aa^l = chi_1^k [1 + (1/keep) sum_{j=1..k} chi_1^j],       g_ab^l = r chi_2^k sum_{j=0..k} (chi_1^2 / chi_2)^j

Erratum S1.4: (13) of the paper, chi_1 for g_ab too, is refuted. What falls as chi_1^k is the noise of one network,

    std(g_ab^l) = level N^(-1/2) g_aa^l

and since abs(g_ab) is averaged there, it is the noise that shows beyond the depth where the two curves cross; if both are
exponentials, at k = ln(sqrt(N) r / level) / ln(chi_1 / chi_2). r = g_ab^L / g_aa^L.

`level` was measured in linear networks as .72 to .81 for widths 64 to 1024.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.given import Count, Number
from orderone.core.reals import real
from orderone.theory.activations import PiecewiseLinear
from orderone.theory.meanfield.lengths import length_slope
from orderone.theory.meanfield.mean_field import MeanField
from orderone.theory.meanfield.roots import bracketed

LEVEL = 0.76
FARTHEST = 1e12  # layers

if TYPE_CHECKING:
    Network: TypeAlias = MeanField
else:
    Network = Any


@dataclass(frozen=True)
class GradientLaw:
    """Relative to g_aa of the last layer; entry l - 1 is layer l."""

    g_aa: np.ndarray
    g_ab: np.ndarray  # its mean, with the sign
    noise: np.ndarray  # the standard deviation of g_ab over networks, which is also where abs(g_ab) levels off
    crossover: float  # distance from the output at which noise and mean are equal; inf if they never are


def gradient_law(
    network: Network, depth: Count, width: Count, ratio: Number = 1.0, level: Number = LEVEL
) -> GradientLaw:
    """Means and noise of the gradient metrics of layers 1 to `depth` at finite width.

    `ratio` is g_ab / g_aa at the last layer, about c* for two inputs at the fixed point. Linear networks have the sums of
    S1 (12); of all others the rates are known, not the prefactors.
    """
    network = instance(network, MeanField, "network", "make one with MeanField(...)")
    depth, width = count(depth, "depth"), count(width, "width")
    ratio, level = real(ratio, "ratio", above=0), real(level, "level", above=0)
    squares, overlaps = _decays(network)
    k, floor = np.arange(depth - 1, -1, -1.0), level / math.sqrt(width)
    with np.errstate(over="ignore", under="ignore"):
        g_aa, g_ab = np.exp(squares.log(k)), ratio * np.exp(overlaps.log(k))
    return GradientLaw(g_aa, g_ab, floor * g_aa, _crossing(squares, overlaps, math.log(ratio / floor)))


class _Decay(NamedTuple):
    """rate^k [1 + weight sum_{j=1..k} ratio^j] for any real k; ratio <= 1, since the faster of two rates is the first."""

    rate: float
    ratio: float = 0.0
    weight: float = 0.0

    def log(self, k: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            power = np.where(k == 0, 0.0, k * np.log(self.rate))
        near = abs(1 - self.ratio) < 1e-9
        total = k if near else self.ratio * (1 - self.ratio**k) / (1 - self.ratio)
        return power + np.log1p(self.weight * total)


def _decays(network: MeanField) -> tuple[_Decay, _Decay]:
    """Of g_aa and of g_ab."""
    weight_var, _, keep = network.one()
    chi1, chi2 = float(network.chi1), float(network.chi2)
    lengthen = float(length_slope(network.phi, np.array([weight_var / keep]), np.array([network.q_star]))[0])
    fastest = max(chi2, lengthen**2)
    linear = isinstance(network.phi, PiecewiseLinear) and network.phi.even == 0
    if not linear or not 0 < chi1 < 1:
        return _Decay(chi1), _Decay(fastest)
    return _Decay(chi1, chi1, 1 / float(keep)), _Decay(fastest, min(chi2, chi1**2) / fastest, 1.0)


def _crossing(squares: _Decay, overlaps: _Decay, head_start: float) -> float:
    """Where the overlaps have lost their head start; inf if they never do."""
    if head_start <= 0 or overlaps.rate == 0:
        return 0.0
    if not overlaps.rate < squares.rate < math.inf:
        return math.inf
    left = lambda k: float(head_start + overlaps.log(k) - squares.log(k))  # noqa: E731
    far = 1.0
    while left(far) > 0 and far < FARTHEST:
        far *= 2
    if left(far) > 0:
        return math.inf
    return float(bracketed(lambda k, _: np.array([left(k[0])]), np.zeros(1), np.array([far]))[0])


def crossover_depth(chi1: Number, chi2: Number, width: Count, ratio: Number = 1.0, level: Number = LEVEL) -> float:
    """Layers from the output beyond which the noise of g_ab exceeds its mean: erratum S1.4."""
    chi1, chi2 = real(chi1, "chi1", above=0), real(chi2, "chi2", least=0)
    ratio, level = real(ratio, "ratio", above=0), real(level, "level", above=0)
    head_start = math.log(math.sqrt(count(width, "width")) * ratio / level)
    if head_start <= 0 or chi2 == 0:
        return 0.0
    return head_start / math.log(chi1 / chi2) if chi1 > chi2 else math.inf
