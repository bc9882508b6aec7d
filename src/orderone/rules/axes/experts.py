"""Number of experts: factors of the tensors in a mixture of experts.

    y = sum over the k chosen of M experts e of g_e(x) E_e(x),    S = sum of the k weights g_e

No dimension of a single expert grows: M, k, and perhaps S in the forward code do. With m, a and s
their ratios, target over base:

    forward    updates of the chosen experts add up coherently, so that the sum of their weights
               must be of order one. The code's weights sum to S, so the missing factor 1/s is
               folded into the last tensors of the experts. (Independent experts add up to k^-1/2
               of one at initialization: like muP's readout, the sum starts smaller than it
               becomes.)
    gradient   a token visits an expert with probability k/M, and with weight 1/k. A batch of T
               tokens gives a sum of T k/M terms with independent signs, each 1/(k T):
               (k M)^-1/2. The same holds for the row of the router that chooses the expert
    Adam       normalizes: the rate stays. eps follows the gradient
    SGD        the rate times (k M)^1/2

**The linear program.** For k = M = n (every expert active) experts are a second width n. A tensor
of an expert is an `embedding`: it has n outputs of fixed fan-in. The sum over experts is a
`readout` with the multiplier 1/n. This is the mean-field rule, `rules.get("mf")`: gradients n^-1,
SGD's rate n, Adam's rate 1, and 1/n for the sum. The formulas above agree with it.

Where k/M changes, every expert sees another number of tokens per step. This is another batch size
for the experts, and no rule preserves hyperparameters: updates align better with the fewer tokens
that made them, so that changes of the output may grow up to (M/k)^1/2. The authors of both rules
below keep k/M fixed.

    mup      as above. The router is a readout: initial size 1/fan-in (as in Jiang, Bordelon,
             Pehlevan & Hanin 2026, arXiv:2601.20205)
    mssp     Maximally Scale-Stable Parameterization: the router starts with fan-in^-1/2; with
             experts of fixed width, their last matrix starts k^1/2 times larger, so that the sum
             over experts is of order one at initialization (Vankadara, Haas, Hayward, Bordt &
             Breccia 2026, arXiv:2605.14200; `scaling_configs.py` of mssp-moe, where M grows with k)
    jiang    as mup, with one eps for all sizes: the form in which mssp-moe compares with
             arXiv:2601.20205 (`MuPJiangAdamAllScalingConfig`)
"""

from dataclasses import dataclass, replace

from orderone.core.errors import one_of
from orderone.core.inputs import Name, Number
from orderone.rules.factors import Factors
from orderone.theory.exponents.updates import LawInput, update_law

EXPERT_RULES = ("mup", "mssp", "jiang")
EXPERT_TENSORS = ("router", "expert", "expert output")


@dataclass(frozen=True)
class ExpertGrowth:
    """Ratios of a mixture of experts, target over base."""

    experts: Number = 1.0  # number of experts
    active: Number = 1.0  # number of experts that a token visits
    weights: Number = 1.0  # sum of their weights in the forward code
    width: Number = 1.0  # hidden size of one expert
    fan_in: Number = 1.0  # fan-in of the router

    @property
    def gradient(self) -> float:
        """Gradient of experts and router at initialization."""
        return (self.experts * self.active) ** -0.5

    @property
    def tokens(self) -> float:
        """Tokens that one expert sees in a batch of constant size."""
        return self.active / self.experts


def expert_factors(
    tensor: Name, growth: ExpertGrowth, optimizer: LawInput = "adam", rule: Name = "mup"
) -> Factors:
    """Return the factors of a tensor of an expert or its router, beyond those of its width.

    `tensor` is "router", "expert", or "expert output": the last tensors of an expert.
    """
    tensor = one_of(tensor, EXPERT_TENSORS, "tensor")
    rule = one_of(rule, EXPERT_RULES, "expert_rule")
    law = update_law(optimizer)
    gradient = growth.gradient
    factors = Factors(lr=gradient ** -float(law.gradient), gradient=gradient)
    if tensor == "expert output":
        factors = factors.folding(1 / growth.weights, law)
    if rule == "mssp":
        factors = replace(factors, std=factors.std * _mssp_size(tensor, growth))
    if rule == "jiang":
        factors = replace(factors, eps=1 / factors.gradient)
    return factors


def _mssp_size(tensor: str, growth: ExpertGrowth) -> float:
    """Return the factor of the initial size beyond that of `mup`."""
    if tensor == "router" and growth.experts != 1:
        return growth.fan_in**0.5
    if tensor == "expert output" and growth.width == 1:
        return growth.active**0.5
    return 1.0
