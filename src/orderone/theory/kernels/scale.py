"""Multiplication by a number, and sums of branches.

    Scale     h' = c h                      K' = c^2 K                     the same for Theta
    Sum       h' = f(h) + g(h) + ...        K' = K_f + K_g + ...           the same for Theta

Cross terms of a sum vanish if its branches are independent given h: all but one must end with new
weights.
"""

from dataclasses import dataclass, replace

from orderone.core.errors import InputError
from orderone.core.inputs import Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Kernel, Points
from orderone.theory.kernels.layer import Layer, LayerInput, Pointwise, read_layers
from orderone.theory.kernels.norms import unchanged
from orderone.theory.kernels.pairs import Step
from orderone.theory.kernels.residual import Residual, is_independent
from orderone.theory.kernels.sequential import Sequential


@dataclass(frozen=True, init=False)
class Scale(Pointwise):
    """Multiplication of all neurons by `factor`."""

    factor: float

    def __init__(self, factor: Number) -> None:
        object.__setattr__(self, "factor", real(factor, "factor"))

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        square = self.factor**2
        scaled = replace(
            points,
            variance=square * points.variance,
            ntk=square * points.ntk,
            mean=self.factor * points.mean,
        )
        return unchanged, scaled


@dataclass(frozen=True, init=False)
class Sum(Layer):
    """Sum of branches that read the same neurons, such as a block and its projected skip."""

    branches: tuple[Sequential, ...]

    def __init__(self, *branches: LayerInput) -> None:
        read = tuple(Sequential(branch) for branch in read_layers(branches, "Sum"))
        object.__setattr__(self, "branches", read)
        dependent = [branch for branch in read if not is_independent(branch)]
        if len(read) < 2 or len(dependent) > 1:
            raise InputError(
                "Sum: expected at least two branches, all but one of which end with a Dense or Conv"
                f" layer; got {len(read)}, of which {len(dependent)} end otherwise, so that they"
                " would be correlated",
                "needs-dense-layer",
                argument="branches",
            )

    @property
    def independent(self) -> bool | None:  # type: ignore[override]
        return all(is_independent(branch) for branch in self.branches)

    def apply(self, kernel: Kernel) -> Kernel:
        total = self.branches[0](kernel)
        for branch in self.branches[1:]:
            total = Residual.join(total, branch(kernel))
        return total
