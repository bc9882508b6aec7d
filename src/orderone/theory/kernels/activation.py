"""An activation, applied to every neuron.

    K'_ab     = E[phi(x) phi(y)],                       x, y Gaussian with variances K_aa, K_bb and
                                                        covariance K_ab
    Theta'_ab = E[phi'(x) phi'(y)] Theta_ab

so tangent' = slope tangent, where slope = E[phi' phi'] sqrt(q_a q_b) / sqrt(q'_a q'_b) is the
derivative of the new correlation with respect to the old one (Price's theorem). The averages are
those of `theory.activations`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from orderone.core.inputs import Array
from orderone.theory import activations
from orderone.theory.kernels.kernel import Points
from orderone.theory.kernels.layer import Pointwise
from orderone.theory.kernels.pairs import Pairs, Step, per_point
from orderone.theory.kernels.strips import Strip

SMALLEST = 1e-30  # variances below this are linear to any activation
HUGE = 1e100  # those above meet an activation as straight lines, or as a bounded function


@dataclass(frozen=True, init=False)
class Activation(Pointwise):
    """`phi` is a name, a function, or one of `theory.activations`."""

    phi: activations.Activation
    independent: ClassVar[bool | None] = False

    def __init__(self, phi: Any):
        object.__setattr__(self, "phi", activations.get(phi))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        self._check(points)
        xp = array_namespace(points.variance)
        q = xp.where(points.variance < HUGE, points.variance, HUGE)
        variance, slope, mean = self.phi.moments(q, xp)
        growth = xp.where((q == HUGE) & (variance > 1), points.variance / HUGE, 1.0)
        ntk = xp.where(
            (slope > 0) & (points.ntk > 0), points.ntk * slope, 0.0
        )  # nothing times infinity is nothing
        behind = Points(variance * growth, ntk, mean * xp.sqrt(growth), gaussian=False)
        lengths = per_point(dtype, *self.phi.of_length(_resolved(q, dtype), xp))

        def step(pairs: Pairs, strip: Strip) -> Pairs:
            gap, slope = self.phi.gap_and_slope(*lengths.sides(strip), pairs.gap, xp)
            return Pairs(gap, slope * pairs.tangent)

        return step, behind

    def _check(self, points: Points) -> None:
        if not points.gaussian:
            raise ValueError(
                f"{self}: expected Gaussian neurons, which follow a Dense layer; got those of"
                " inputs, an activation or dropout; put kernels.Dense(...) in front"
            )


def _resolved(q: Array, dtype: object) -> Array:
    """Variances as far as pairs can tell: 1 + q must differ from q, and the smallest must not
    vanish in products."""
    xp = array_namespace(q)
    largest = 0.1 / xp.finfo(dtype).eps
    return xp.where(q < SMALLEST, SMALLEST, xp.where(q > largest, largest, q))
