"""Residual block: h' = h + scale * branch(h).

    K'     = K + scale^2 K_branch
    Theta' = Theta + scale^2 Theta_branch

The branch must end with a Dense layer, which dropout or a normalization may follow: then it is
independent of the skip connection, and cross terms vanish. S3 (2.13) is the limit of this with
scale = depth^{-1/2}.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Kernel, Points
from orderone.theory.kernels.layer import LayerInput, Pointwise, run, steps_through
from orderone.theory.kernels.mixing import Mixture, shares
from orderone.theory.kernels.pairs import Pairs, Step, through
from orderone.theory.kernels.sequential import Sequential
from orderone.theory.kernels.strips import Strip


@dataclass(frozen=True, init=False)
class Residual(Pointwise):
    """Residual block h + scale * branch(h); the layers of the branch are separate arguments."""

    branch: Sequential
    scale: float
    independent: ClassVar[bool | None] = False

    def __init__(self, *branch: LayerInput, scale: Number = 1.0) -> None:
        object.__setattr__(self, "branch", Sequential(*branch))
        object.__setattr__(self, "scale", real(scale, "scale"))
        if not is_independent(self.branch):
            if self.branch.layers:
                ending = self.branch.layers[-1]
            else:
                ending = "no layer"
            raise InputError(
                "Residual: expected a branch that ends with a Dense layer, got one that ends with"
                f" {ending}, so that branch and skip connection would be correlated; add"
                " kernels.Dense(...) at its end",
                "needs-dense-layer",
                argument="branch",
            )

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return all(layer.pointwise for layer in self.branch.layers)

    def apply(self, kernel: Kernel) -> Kernel:
        if self.pointwise:
            return run([self], kernel)
        branch = self.branch(kernel)
        return self.join(kernel, branch, self.scale)

    @classmethod
    def join(cls, skip: Kernel, branch: Kernel, scale: float = 1.0) -> Kernel:
        """Return the kernel of the sum of two kernels of independent neurons."""
        if branch.gap.shape != skip.gap.shape:
            raise InputError(
                "Residual: expected a branch that does not change the number of points, got"
                f" {skip.gap.shape[0]} points at its start and {branch.gap.shape[0]} at its end;"
                " pool after the residual block, not inside",
                argument="branch",
            )

        def read_branch(_: Pairs, strip: Strip) -> Pairs:
            return Pairs(strip.read(branch.gap), strip.read(branch.tangent))

        dtype = skip.gap.dtype
        step, points = cls._joined(skip.points, branch.points, read_branch, dtype, scale)
        return through(skip, [step], points)

    def prepare(self, points: Points, dtype: object) -> tuple[Step, Points]:
        steps, last = steps_through(self.branch.layers, points, dtype)

        def branch(pairs: Pairs, strip: Strip) -> Pairs:
            for step in steps:
                pairs = step(pairs, strip)
            return pairs

        return self._joined(points, last, branch, dtype, self.scale)

    @staticmethod
    @np.errstate(all="ignore")
    def _joined(
        skip: Points, branch: Points, branch_step: Step, dtype: object, scale: float
    ) -> tuple[Step, Points]:
        """Return the step and the points of the sum of skip connection and branch."""
        square = scale**2
        mixture = Mixture.of(dtype, *shares(skip.variance, square * branch.variance))

        def step(pairs: Pairs, strip: Strip) -> Pairs:
            skip_share = mixture.first(strip)
            branch_share = mixture.second(strip)
            branch_pairs = branch_step(pairs, strip)
            gap = skip_share * pairs.gap + branch_share * branch_pairs.gap + mixture.apart(strip)
            tangent = skip_share * pairs.tangent + branch_share * branch_pairs.tangent
            return Pairs(gap, tangent)

        variance = skip.variance + square * branch.variance
        ntk = skip.ntk + square * branch.ntk
        mean = skip.mean + scale * branch.mean
        return step, Points(variance, ntk, mean, skip.gaussian and branch.gaussian)


def is_independent(branch: Sequential) -> bool:
    """Return whether the branch is independent of its input; its last layers decide this."""
    for layer in reversed(branch.layers):
        if layer.independent is not None:
            return layer.independent
    return False
