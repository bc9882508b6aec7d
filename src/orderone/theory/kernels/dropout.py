"""Dropout with an independent mask for each point: h' = p h / keep, p ~ Bernoulli(keep).

    K'_ab = K_ab
    K'_aa = K_aa / keep                                     S1 (1)-(3); the same for Theta

Only the diagonal grows: two points have different masks, even if they are equal, and their
correlation falls by the factor `keep`. (`keep` is the probability to keep a neuron; S1 calls it a
dropout rate, erratum S1.8.)

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from dataclasses import dataclass

from orderone.core.inputs import Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Points
from orderone.theory.kernels.layer import Pointwise
from orderone.theory.kernels.pairs import Pairs, Step
from orderone.theory.kernels.strips import Strip


@dataclass(frozen=True, init=False)
class Dropout(Pointwise):
    """Dropout that keeps a neuron with probability `keep`, in (0, 1]."""

    keep: float

    def __init__(self, keep: Number) -> None:
        probability = real(keep, "keep", above=0, most=1)
        object.__setattr__(self, "keep", probability)

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        keep = self.keep

        def step(pairs: Pairs, strip: Strip) -> Pairs:
            return Pairs(keep * pairs.gap + (1 - keep), keep * pairs.tangent)

        gaussian = points.gaussian and keep == 1
        return step, Points(points.variance / keep, points.ntk / keep, points.mean, gaussian)
