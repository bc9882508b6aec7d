"""Fully connected layer, in the parameterization in which tangent kernels have a limit.

    z_i    = sqrt(weight_var / n) sum_j W_ij h_j + sqrt(bias_var) b_i
    W, b   ~ N(0, 1)                                        n neurons h_j, n -> infinity

    K'     = weight_var K + bias_var                        S1 (2)-(3), no activation, no dropout
    Theta' = weight_var Theta + K'

The weights and biases of this layer contribute K' to Theta'. Neurons become Gaussian, with mean 0.
With u = sqrt(weight_var q / q'), the root of the share of the weights in the new variance,

    tangent'_ab = u_a u_b tangent_ab + 1 - gap'_ab

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from orderone.core.inputs import Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Points
from orderone.theory.kernels.layer import Pointwise
from orderone.theory.kernels.mixing import Mixture, shares
from orderone.theory.kernels.pairs import Pairs, Step
from orderone.theory.kernels.strips import Strip


@dataclass(frozen=True, init=False)
class Dense(Pointwise):
    """Layer with weights of variance `weight_var` / fan-in and biases of variance `bias_var`."""

    weight_var: float
    bias_var: float
    independent: ClassVar[bool | None] = True

    def __init__(self, weight_var: Number = 1.0, bias_var: Number = 0.0) -> None:
        object.__setattr__(self, "weight_var", real(weight_var, "weight_var", least=0))
        object.__setattr__(self, "bias_var", real(bias_var, "bias_var", least=0))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        variance = self.weight_var * points.variance + self.bias_var
        ntk = self.weight_var * points.ntk + variance
        mean = array_namespace(variance).zeros_like(variance)
        return self._step(points, dtype), Points(variance, ntk, mean, gaussian=True)

    def _step(self, points: Points, dtype: object) -> Step:
        if self.bias_var == 0 and self.weight_var > 0:
            return _without_bias
        signal = self.weight_var * points.variance
        mixture = Mixture.of(dtype, *shares(signal, 0 * signal + self.bias_var))

        def with_bias(pairs: Pairs, strip: Strip) -> Pairs:
            share = mixture.first(strip)
            gap = share * pairs.gap
            tangent = share * pairs.tangent
            gap += mixture.apart(strip)
            tangent += 1 - gap
            return Pairs(gap, tangent)

        return with_bias


def _without_bias(pairs: Pairs, strip: Strip) -> Pairs:
    return Pairs(pairs.gap, pairs.tangent + (1 - pairs.gap))
