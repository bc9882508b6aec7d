"""How gradients decay with the distance k = L - l from the output, for any activation, and where the noise takes over.

    g_aa^l = g_aa^L chi_1^k,      g_ab^l = g_ab^L chi_2^k                                            S1 (9), (11)

Erratum S1.4: (13) of the paper, chi_1 for g_ab too, is refuted. What falls as chi_1^k is the noise of one network,

    std(g_ab^l) = level N^(-1/2) g_aa^l

and since abs(g_ab) is averaged there, it is the noise that shows beyond the depth where the two curves cross:

    k = ln(sqrt(N) r / level) / ln(chi_1 / chi_2),       r = g_ab^L / g_aa^L

For linear networks chi_1 / chi_2 = 1 / keep. `level` was measured there as .72 to .81 for widths 64 to 1024.
"""

import math
from dataclasses import dataclass

import numpy as np

from orderone.core.exact import count
from orderone.core.given import Count, Number
from orderone.core.reals import real
from orderone.theory.meanfield.mean_field import MeanField

LEVEL = 0.76


@dataclass(frozen=True)
class GradientLaw:
    """Relative to g_aa of the last layer; entry l - 1 is layer l."""

    g_aa: np.ndarray
    g_ab: np.ndarray  # its mean, with the sign
    noise: np.ndarray  # the standard deviation of g_ab over networks, which is also where abs(g_ab) levels off
    crossover: float  # distance from the output at which noise and mean are equal; inf if they never are


def gradient_law(
    network: MeanField, depth: Count, width: Count, ratio: Number = 1.0, level: Number = LEVEL
) -> GradientLaw:
    """Means and noise of the gradient metrics of layers 1 to `depth` at finite width.

    `ratio` is g_ab / g_aa at the last layer, about c* for two inputs at the fixed point.
    """
    depth, width = count(depth, "depth"), count(width, "width")
    ratio, level = real(ratio, "ratio", above=0), real(level, "level", above=0)
    chi1, chi2 = float(network.chi1), float(network.chi2)
    k = np.arange(depth - 1, -1, -1.0)
    with np.errstate(over="ignore", under="ignore"):
        g_aa, g_ab = np.power(chi1, k), ratio * np.power(chi2, k)
        return GradientLaw(
            g_aa, g_ab, level / math.sqrt(width) * g_aa, crossover_depth(chi1, chi2, width, ratio, level)
        )


def crossover_depth(chi1: Number, chi2: Number, width: Count, ratio: Number = 1.0, level: Number = LEVEL) -> float:
    """Layers from the output beyond which the noise of g_ab exceeds its mean: erratum S1.4."""
    chi1, chi2 = real(chi1, "chi1", above=0), real(chi2, "chi2", least=0)
    head_start = math.log(math.sqrt(count(width, "width")) * ratio / level)
    if head_start <= 0 or chi2 == 0:
        return 0.0
    return head_start / math.log(chi1 / chi2) if chi1 > chi2 else math.inf
