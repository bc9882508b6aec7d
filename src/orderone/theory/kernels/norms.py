"""Normalizations over the neurons of a point, without gains or shifts.

    RMSNorm     h'    = h / sqrt(q + eps)
                K'_ab = K_ab / sqrt((q_a + eps) (q_b + eps))
    LayerNorm   h'    = (h - mu) / sqrt(q - mu^2 + eps)
                K'_ab = (K_ab - mu_a mu_b) / sqrt((q_a - mu_a^2 + eps) (q_b - mu_b^2 + eps))

and Theta' = Theta / (the same roots): in a wide network the backward pass through a mean or a root
is of order 1/n. S2 (1.10), (1.50), (1.53); erratum S2.1: eps is inside the root. mu is the mean
over neurons: 0 after a Dense layer, where both norms are equal, and E[phi] after an activation.
Neither norm changes correlations or tangents of centred neurons.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from dataclasses import dataclass

from array_api_compat import array_namespace

from orderone.core.errors import InputError
from orderone.core.inputs import Array, Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Points
from orderone.theory.kernels.layer import Pointwise
from orderone.theory.kernels.mixing import Mixture, shares
from orderone.theory.kernels.pairs import Pairs, Step
from orderone.theory.kernels.strips import Strip

ROUNDING = 1e-14  # relative variance below which it is rounding


@dataclass(frozen=True, init=False)
class RMSNorm(Pointwise):
    """Division by the root mean square of a point's neurons."""

    eps: float

    def __init__(self, eps: Number = 0.0) -> None:
        object.__setattr__(self, "eps", real(eps, "eps", least=0))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        return unchanged, _divided(points, self.eps)


@dataclass(frozen=True, init=False)
class LayerNorm(Pointwise):
    """Subtraction of the mean of a point's neurons, and division by their standard deviation."""

    eps: float

    def __init__(self, eps: Number = 0.0) -> None:
        object.__setattr__(self, "eps", real(eps, "eps", least=0))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        centred = Points(_centred(points), points.ntk, 0 * points.mean, points.gaussian)
        step = unchanged
        if bool((points.mean != 0).any()):
            step = _centring(points, centred, dtype)
        return step, _divided(centred, self.eps)


def _centring(points: Points, centred: Points, dtype: object) -> Step:
    """Return the step that subtracts mu_a mu_b from K_ab: the inverse of `mixing`."""
    xp = array_namespace(points.mean)
    deviation, mean = shares(centred.variance, points.mean**2)
    # The kernel of a constant point becomes 0 for any gaps.
    deviation = xp.where(deviation > 0, deviation, 1.0)
    mixture = Mixture.of(dtype, deviation, mean * xp.sign(points.mean))

    def step(pairs: Pairs, strip: Strip) -> Pairs:
        share = mixture.first(strip)
        gap = (pairs.gap - mixture.apart(strip)) / share
        return Pairs(gap, pairs.tangent / share)

    return step


def unchanged(pairs: Pairs, strip: Strip) -> Pairs:
    """Return the pairs: a step that does nothing."""
    return pairs


def _centred(points: Points) -> Array:
    """Return q - mu^2, or exactly 0 for a constant point, where only rounding remains."""
    centred = points.variance - points.mean**2
    return array_namespace(centred).where(centred > ROUNDING * points.variance, centred, 0.0)


def _divided(points: Points, eps: float) -> Points:
    """Divide by sqrt(variance + eps)."""
    xp = array_namespace(points.variance)
    square = points.variance + eps
    if bool((square == 0).any()):
        raise InputError(
            "normalization: expected points whose neurons vary, got one with the variance 0, which"
            " would give 0 / 0; pass eps=1e-5, as PyTorch does, or remove constant inputs",
            "zero-variance",
            argument="kernel",
        )
    if not bool(xp.all(xp.isfinite(square))):
        raise InputError(
            "normalization: expected finite variances, got one that overflowed; normalize in an"
            " earlier layer, or use a smaller weight_var",
            argument="kernel",
        )
    return Points(
        points.variance / square,
        points.ntk / square,
        points.mean / xp.sqrt(square),
        points.gaussian,
    )
