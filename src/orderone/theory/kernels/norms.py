"""Normalizations over the neurons of a point, without gains or shifts.

    RMSNorm     h' = h / sqrt(q + eps)                      K'_ab = K_ab / sqrt((q_a + eps) (q_b +
                eps))
    LayerNorm   h' = (h - mu) / sqrt(q - mu^2 + eps)        K'_ab = (K_ab - mu_a mu_b) / ...

and Theta' = Theta / (the same roots): in a wide network the backward pass through a mean or a root
is of order 1/n. S2 (1.10), (1.50), (1.53); erratum S2.1: eps is inside the root. mu is the mean
over neurons: 0 behind a Dense layer, where both are the same, and E[phi] behind an activation.
Neither changes a correlation of centred neurons, nor a tangent.
"""

from dataclasses import dataclass

from array_api_compat import array_namespace

from orderone.core.inputs import Array, Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Points
from orderone.theory.kernels.layer import Pointwise
from orderone.theory.kernels.mixing import Mixture, shares
from orderone.theory.kernels.pairs import Pairs, Step
from orderone.theory.kernels.strips import Strip

ROUNDING = 1e-14  # of a variance: less than that is no variance


@dataclass(frozen=True, init=False)
class RMSNorm(Pointwise):
    """Divides by the root mean square of a point's neurons."""

    eps: float

    def __init__(self, eps: Number = 0.0):
        object.__setattr__(self, "eps", real(eps, "eps", least=0))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        return unchanged, _divided(points, self.eps)


@dataclass(frozen=True, init=False)
class LayerNorm(Pointwise):
    """Subtracts the mean of a point's neurons and divides by their standard deviation."""

    eps: float

    def __init__(self, eps: Number = 0.0):
        object.__setattr__(self, "eps", real(eps, "eps", least=0))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        centred = Points(_centred(points), points.ntk, 0 * points.mean, points.gaussian)
        if bool((points.mean != 0).any()):
            step = _centring(points, centred, dtype)
        else:
            step = unchanged
        return step, _divided(centred, self.eps)


def _centring(points: Points, centred: Points, dtype: object) -> Step:
    """K_ab - mu_a mu_b: `mixing` read backwards."""
    xp = array_namespace(points.mean)
    deviation, mean = shares(centred.variance, points.mean**2)
    deviation = xp.where(
        deviation > 0, deviation, 1.0
    )  # of a constant point nothing is left, whatever its gaps are
    mixture = Mixture.of(dtype, deviation, mean * xp.sign(points.mean))

    def step(pairs: Pairs, strip: Strip) -> Pairs:
        kept = mixture.first(strip)
        gap = (pairs.gap - mixture.apart(strip)) / kept
        return Pairs(gap, pairs.tangent / kept)

    return step


def unchanged(pairs: Pairs, strip: Strip) -> Pairs:
    return pairs


def _centred(points: Points) -> Array:
    """q - mu^2. A constant point, which has none, must not get a share of rounding."""
    centred = points.variance - points.mean**2
    return array_namespace(centred).where(centred > ROUNDING * points.variance, centred, 0.0)


def _divided(points: Points, eps: float) -> Points:
    """By sqrt(variance + eps)."""
    xp = array_namespace(points.variance)
    square = points.variance + eps
    if bool((square == 0).any()):
        raise ValueError(
            "normalization: expected points that vary over their neurons, got one whose variance is"
            " 0, so that the result is 0 / 0; give eps=1e-5, as PyTorch does, or leave out constant"
            " inputs"
        )
    if not bool(xp.all(xp.isfinite(square))):
        raise ValueError(
            "normalization: expected finite variances, got one that overflowed; normalize earlier,"
            " or give smaller weight_var"
        )
    return Points(
        points.variance / square,
        points.ntk / square,
        points.mean / xp.sqrt(square),
        points.gaussian,
    )
