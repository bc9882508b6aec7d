"""Activation layer: phi of every neuron.

    K'_ab     = E[phi(x) phi(y)]
    Theta'_ab = E[phi'(x) phi'(y)] Theta_ab

where x, y are Gaussian with variances K_aa, K_bb and covariance K_ab. So

    tangent'  = slope tangent
    slope     = E[phi' phi'] sqrt(q_a q_b) / sqrt(q'_a q'_b)

slope is the derivative of the new correlation with respect to the old one (Price's theorem).
`theory.activations` computes the means.
"""

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from orderone.core.errors import InputError
from orderone.core.inputs import Array, Function, Name
from orderone.theory import activations
from orderone.theory.kernels.kernel import Points
from orderone.theory.kernels.layer import Pointwise
from orderone.theory.kernels.pairs import Pairs, Step, per_point
from orderone.theory.kernels.strips import Strip

SMALLEST = 1e-30  # below this variance any activation is linear
HUGE = 1e100  # above this variance any activation is two straight lines, or bounded


@dataclass(frozen=True, init=False)
class Activation(Pointwise):
    """Elementwise activation; `phi` is a name, a function, or one of `theory.activations`."""

    phi: activations.Activation
    independent: ClassVar[bool | None] = False

    def __init__(self, phi: Name | Function) -> None:
        object.__setattr__(self, "phi", activations.get(phi))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        self._check_gaussian(points)
        xp = array_namespace(points.variance)
        q = xp.where(points.variance < HUGE, points.variance, HUGE)
        variance, slope, mean = self.phi.moments(q, xp)
        growth = xp.where((q == HUGE) & (variance > 1), points.variance / HUGE, 1.0)
        # Zero times infinity is zero.
        ntk = xp.where((slope > 0) & (points.ntk > 0), points.ntk * slope, 0.0)
        new_points = Points(variance * growth, ntk, mean * xp.sqrt(growth), gaussian=False)
        lengths = per_point(dtype, *self.phi.of_length(_resolved(q, dtype), xp))

        def step(pairs: Pairs, strip: Strip) -> Pairs:
            left, right = lengths.sides(strip)
            gap, slope = self.phi.gap_and_slope(left, right, pairs.gap, xp)
            return Pairs(gap, slope * pairs.tangent)

        return step, new_points

    def _check_gaussian(self, points: Points) -> None:
        if not points.gaussian:
            raise InputError(
                f"{self}: expected Gaussian neurons, the output of a Dense layer; got inputs, or"
                " the output of an activation or dropout; put kernels.Dense(...) before it",
                "needs-dense-layer",
                argument="kernel",
            )


def _resolved(q: Array, dtype: object) -> Array:
    """Return variances clipped to the range that `dtype` can resolve.

    1 + q must differ from q, and products of the smallest must not underflow.
    """
    xp = array_namespace(q)
    largest = 0.1 / xp.finfo(dtype).eps
    return xp.where(q < SMALLEST, SMALLEST, xp.where(q > largest, largest, q))
